package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"skerry.internal/runnerd"
	"skerry.internal/sandbox"
)

func (a *app) doctorCommand() *cobra.Command {
	return &cobra.Command{
		Use: "doctor", Short: "Probe what sandboxes this host gives and tell how to get more", Example: "  skerry doctor --json", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			report, err := runnerd.Doctor(cmd.Context(), runnerd.DefaultConfig())
			if err != nil {
				return err
			}
			if a.json {
				err = a.printJSON(report)
			} else {
				_, err = fmt.Fprint(a.stdout, report)
			}
			if err == nil && report.Tier == sandbox.TierNone {
				err = &exitError{code: exitOwnError}
			}
			return err
		},
	}
}
