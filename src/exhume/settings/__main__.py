"""Print the page of all settings."""

from exhume.settings.reference import reference_page

if __name__ == "__main__":
    print(reference_page(), end="")  # noqa: T201 - that is what it is for
