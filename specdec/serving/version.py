"""Version of the installed package."""

from importlib.metadata import PackageNotFoundError, version


def package_version() -> str:
    """Return the version, or "unknown" if the package is not installed."""
    try:
        return version("specdec-serve")
    except PackageNotFoundError:
        return "unknown"
