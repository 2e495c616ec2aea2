"""The version of the installed package."""

from importlib.metadata import PackageNotFoundError, version


def package_version() -> str:
    """The version, or "unknown" where the code runs without being installed."""
    try:
        return version("specdec-serve")
    except PackageNotFoundError:
        return "unknown"
