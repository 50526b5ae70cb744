package main

import (
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// Every command has a line about it and an example that begins with itself.
func TestEveryCommandHasAnExample(t *testing.T) {
	var walk func(*cobra.Command)
	walk = func(c *cobra.Command) {
		if c.Hidden || c.Name() == "help" || c.Name() == "completion" {
			return
		}
		if c.Short == "" || !strings.Contains(c.Example, c.CommandPath()) {
			t.Errorf("%s: short %q, example %q", c.CommandPath(), c.Short, c.Example)
		}
		for _, below := range c.Commands() {
			walk(below)
		}
	}
	walk((&app{}).command())
}
