"""`python -m postprior`: the command line, for launchers that start a module rather than a command."""

from postprior.cli.app import main

if __name__ == "__main__":
    main()
