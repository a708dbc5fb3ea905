"""The command line: the only place that parses arguments, prints and exits."""
