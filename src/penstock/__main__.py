"""python -m penstock: the same as the command `penstock`."""

import sys

from penstock.cli.main import main

sys.argv[0] = "penstock"  # what help and the records of runs call it
raise SystemExit(main())
