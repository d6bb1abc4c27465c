"""The command `asd`, also as `python -m antishortcut`. While it is being imported, a stop signal ends it at once."""

from antishortcut.training.signals import exit_at_once, handled


def main() -> None:
    with handled(exit_at_once):
        from antishortcut.cli import main as command

        command()


if __name__ == "__main__":
    main()
