"""The subcommands of `specdec`, a module each."""
