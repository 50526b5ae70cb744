package main

import "github.com/spf13/cobra"

func (a *app) mcpCommand() *cobra.Command {
	return &cobra.Command{Use: "mcp", Hidden: true, Args: cobra.NoArgs}
}
