package sandbox

import "strings"

// publicEtc are entries of the host's /etc that tools need and that say nothing
// about the host's users, network or secrets.
var publicEtc = []string{
	"ssl", "pki", "ca-certificates", "ca-certificates.conf", // certificates of authorities
	"alternatives", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", // how programs and libraries are found
	"localtime", "timezone", "locale.alias", "locale.conf", "fonts", // F22
	"os-release", "debian_version", "redhat-release", "openEuler-release",
	"magic", "mime.types", "protocols", "services", "rpc", "ethertypes", "inputrc", "terminfo", "papersize", "gai.conf",
	"R", "perl", "python3", "python3.9", "python3.10", "python3.11", "python3.12", "python3.13", "java-11-openjdk", "java-17-openjdk", "java-21-openjdk",
	"java", "javadoc", "jvm", "OpenCL", "vulkan", "openmpi", "pmix", "ImageMagick-6", "ImageMagick-7", "groff", "texmf",
}

// generatedEtc are the files that make the sandbox's user resolvable (F22) and
// name nothing of the host. There is no resolver: names resolve at the egress
// gateway, if a policy grants one at all.
var generatedEtc = map[string]string{
	"/etc/passwd": `
root:x:0:0:root:/root:/usr/sbin/nologin
agent:x:1000:1000:agent:/home/agent:/bin/bash
nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin
`,
	"/etc/group": `
root:x:0:
agent:x:1000:
nogroup:x:65534:
`,
	"/etc/hosts": `
127.0.0.1 localhost skerry
::1 localhost
`,
	"/etc/nsswitch.conf": `
passwd: files
group: files
hosts: files
networks: files
protocols: files
services: files
`,
	"/etc/resolv.conf": "# no resolver: this sandbox has no network\n",
	"/etc/hostname":    "skerry\n",
	"/etc/shells":      "/bin/sh\n/bin/bash\n",
}

// imageFiles replace an image's own: they name nothing but the sandbox.
func imageFiles() map[string]string {
	files := map[string]string{}
	for _, name := range []string{"/etc/hosts", "/etc/resolv.conf", "/etc/hostname"} {
		files[name] = strings.TrimLeft(generatedEtc[name], "\n")
	}
	return files
}

// imageUsers are added to an image's own users and groups.
func imageUsers() map[string]string {
	return map[string]string{
		"/etc/passwd": "agent:x:1000:1000:agent:/home/agent:/bin/bash\n",
		"/etc/group":  "agent:x:1000:\n",
	}
}
