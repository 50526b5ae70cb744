// Package skerry is the root of the Skerry module. It holds no code of its
// own: only the tests that keep the architecture (import rules, package
// documentation, dependency budgets) true for every package below it.
package skerry
