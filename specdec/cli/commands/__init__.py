"""The subcommands of `specdec`, one module each."""
