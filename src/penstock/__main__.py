"""python -m penstock: the same as the command `penstock`."""

from penstock.cli.main import main

raise SystemExit(main())
