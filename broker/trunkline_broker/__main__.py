"""`python -m trunkline_broker [--config FILE]`: the daemon without the command line's packages."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from trunkline_broker import config, daemon
from trunkline_broker.config_errors import ConfigError

EXIT_CONFIG = 2


def main() -> int:
    """Read the configuration and run a broker; 2 for a configuration that can't be used."""
    parser = argparse.ArgumentParser(prog="python -m trunkline_broker", description=__doc__)
    parser.add_argument("--config", type=Path, help="configuration file (TOML)")
    try:
        settings = config.load(parser.parse_args().config)
    except ConfigError as exc:
        sys.stderr.write(f"trunkline: {exc}\n")
        return EXIT_CONFIG
    return daemon.run(settings)


if __name__ == "__main__":
    sys.exit(main())
