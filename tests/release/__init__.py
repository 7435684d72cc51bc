"""An installed wheel without the checkout: `make test-release` copies `tests` elsewhere and runs this folder there."""
