"""What can go wrong, one sentence each; every message says where, what was expected, what was found and the cure."""


class PostpriorError(Exception):
    """The root: catch it to catch everything this library raises on purpose."""


class SettingError(PostpriorError, ValueError):
    """A setting has a value that cannot be used."""


class NetworkError(PostpriorError, ValueError):
    """A network cannot be made Bayesian as it is."""


class BeliefError(PostpriorError, ValueError):
    """A belief does not fit the network, or two beliefs do not fit one another."""


class PartError(PostpriorError, ValueError):
    """A part of data cannot be learned from; the belief is as it was."""


class DivergedError(PostpriorError, ArithmeticError):
    """Training left the finite numbers; the belief is as it was."""


class StoppedError(PostpriorError):
    """Learning was stopped on request; its checkpoint is kept, and the belief is as it was."""


class StoreError(PostpriorError, OSError):
    """A file is missing, damaged, or not one of ours."""


class BusyError(StoreError):
    """Another process holds the store's lock."""


class RacedError(StoreError):
    """Another process moved an alias first; nothing was recorded."""


class RepeatedPartError(PartError):
    """A part was absorbed before: counting it again would make the belief too sure."""


class UnfinishedError(StoreError):
    """An absorption was begun and neither finished nor given up."""


class DataError(PostpriorError, OSError):
    """A dataset cannot be fetched or read."""


class FailedRunsError(PostpriorError, RuntimeError):
    """Some of many runs could not be done; the others are kept."""


class WorkersError(PostpriorError, RuntimeError):
    """Workers on other cores or machines cannot be reached, or died too often."""


class MissingExtraError(PostpriorError, ImportError):
    """An optional package is needed for what was asked."""
