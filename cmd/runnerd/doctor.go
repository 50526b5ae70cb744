package main

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"skerry.internal/runnerd"
	"skerry.internal/sandbox"
)

func doctor() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use: "doctor", Short: "Probe what sandboxes this host gives and tell how to get more",
		Example: "  runnerd doctor --json", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			report, err := runnerd.Doctor(cmd.Context(), runnerd.DefaultConfig())
			if err != nil {
				return err
			}
			if asJSON {
				err = json.NewEncoder(cmd.OutOrStdout()).Encode(report)
			} else {
				_, err = fmt.Fprint(cmd.OutOrStdout(), report)
			}
			if err == nil && report.Tier == sandbox.TierNone {
				err = errors.New("no sandbox can be made on this host")
			}
			return err
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print the report as JSON")
	return c
}
