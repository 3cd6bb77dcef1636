__all__ = ["listed"]


def listed(self):
    return 1


def _hidden(self):
    return 2


def unlisted(self):
    return 3
