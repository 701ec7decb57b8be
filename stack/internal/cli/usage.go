package cli

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
)

// explainUsage makes a wrong call of any command an ErrUsage that says how the command is called.
func explainUsage(cmd *cobra.Command) {
	cmd.SetFlagErrorFunc(usageError)
	if check := cmd.Args; check != nil {
		cmd.Args = func(cmd *cobra.Command, args []string) error { return usageError(cmd, check(cmd, args)) }
	}
	for _, sub := range cmd.Commands() {
		explainUsage(sub)
	}
}

func usageError(cmd *cobra.Command, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%w: %w\n  %s\n%s --help tells more", ErrUsage, err, cmd.UseLine(), cmd.CommandPath())
}

// noSuchCommand is the check of a command that only has further commands: whatever is left of the line names none of them.
func noSuchCommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	cmd.SuggestionsMinimumDistance = 2
	if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
		return fmt.Errorf("there is no command %q; did you mean %s?", args[0], strings.Join(near, " or "))
	}
	return fmt.Errorf("there is no command %q", args[0])
}

func help(cmd *cobra.Command, _ []string) error { return cmd.Help() }
