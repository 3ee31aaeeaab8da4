"""What goes wrong around a run, made to happen: README.md has the whole list."""
