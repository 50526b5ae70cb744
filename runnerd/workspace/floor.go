package workspace

import (
	"slices"
	"strings"

	"connectrpc.com/connect"

	"skerry.internal/proto/problem"
)

// The floor: names that hold credentials are refused by read calls, so that an
// agent that was tricked cannot pass them on; shell start-up files and git's
// internals are refused by write calls too, since other programs run them.
// Matching ignores case, since file systems and tools may. The floor guards
// against mistakes and injections; code in the sandbox can read its own files.
var (
	secretDirs  = []string{".ssh", ".aws", ".gnupg", ".azure", ".kube", ".docker"}
	secretFiles = []string{".netrc", "_netrc", ".npmrc", ".pypirc", ".git-credentials", ".pgpass", ".my.cnf",
		"application_default_credentials.json", "credentials.db", "access_tokens.db"}
	startupFiles = []string{".bashrc", ".bash_profile", ".bash_login", ".bash_logout", ".profile", ".zshrc", ".zshenv", ".zprofile",
		".zlogin", ".zlogout", ".kshrc", ".cshrc", ".tcshrc", ".login", ".logout", ".inputrc", ".envrc"}
)

// CheckRead refuses a path that names credentials. Give it the resolved path as
// well as the one asked for, so that a symlink is no way around.
func (f Floor) CheckRead(field, p string) error {
	if f.AllowSecrets {
		return nil
	}
	return f.checkSecret(field, p)
}

// CheckWrite refuses credentials, git's internals and shell start-up files.
func (f Floor) CheckWrite(field, p string) error {
	if !f.AllowSecrets {
		if err := f.checkSecret(field, p); err != nil {
			return err
		}
	}
	names := strings.Split(strings.ToLower(p), "/")
	for i, name := range names {
		last := i == len(names)-1
		if name == ".git" || (last && slices.Contains(startupFiles, name)) {
			return sensitive(field, "is run or trusted by other programs", "let a command in the sandbox write it")
		}
	}
	return nil
}

// Floor is the operator's choice; the zero value refuses.
type Floor struct {
	// AllowSecrets lifts the refusal of credential names.
	AllowSecrets bool
}

func (Floor) checkSecret(field, p string) error {
	names := strings.Split(strings.ToLower(p), "/")
	for i, name := range names {
		last := i == len(names)-1
		gcloud := name == "gcloud" && i > 0 && names[i-1] == ".config"
		if slices.Contains(secretDirs, name) || gcloud || (last && secretFile(name)) {
			return sensitive(field, "may hold credentials", "ask the operator to allow it (allow_secret_paths)")
		}
	}
	return nil
}

func secretFile(name string) bool {
	return slices.Contains(secretFiles, name) || strings.HasPrefix(name, ".env")
}

func sensitive(field, why, remedy string) error {
	e := problem.New(connect.CodePermissionDenied, problem.PathSensitive, remedy, "this name %s", why)
	e.Field = field
	return e
}
