"""`python -m streamcrawl`: the same as the streamcrawl command."""

from streamcrawl.cli import main

if __name__ == "__main__":
    main()
