// Package bubblewrap translates OCI runtime-spec documents to bubblewrap
// command lines. It refuses what bubblewrap can't express: a translation is
// exactly as strong as the document, or there is none.
package bubblewrap
