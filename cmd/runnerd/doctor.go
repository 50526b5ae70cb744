package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"skerry.internal/config"
	"skerry.internal/runnerd"
	"skerry.internal/sandbox"
)

func doctor() *cobra.Command {
	var asJSON bool
	var path string
	c := &cobra.Command{
		Use: "doctor", Short: "Probe what sandboxes this host gives and tell how to get more",
		Example: "  runnerd doctor --json\n  runnerd doctor --config /etc/skerry/runnerd.yaml", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg := runnerd.DefaultConfig()
			if path != "" {
				if err := config.Load(&cfg, config.Source{Path: path, EnvPrefix: runnerd.EnvPrefix, Environ: os.Environ()}); err != nil {
					return err
				}
			}
			report, err := runnerd.Doctor(cmd.Context(), cfg)
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
	c.Flags().StringVar(&path, "config", "", "configuration whose sandbox settings are probed; empty: the defaults")
	return c
}
