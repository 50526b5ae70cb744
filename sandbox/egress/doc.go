// Package egress is the gateway through which sandboxes reach a network: an
// HTTP proxy that judges every request by the policy of the execution that it
// comes from.
//
// Each execution has a unix socket of its own, in a directory that only its
// sandbox sees, so that the connection itself says whose it is and no credential
// lies in the sandbox. What comes over it is hostile. The gateway understands
// CONNECT, which carries TLS and nothing else, and requests for absolute http
// URIs, one a connection. It resolves names itself, checks every address of the
// answer against the special-purpose registries and connects to a checked
// address without a second look-up. It never follows a redirect: a client that
// does asks again, and is judged again.
//
// Open makes an execution's socket before its sandbox starts, Release ends it
// when no process of it is alive. Close leaves the directories: a later gateway
// that calls Resume for the same execution is reached by the sandbox as before.
package egress
