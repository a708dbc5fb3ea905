"""How a belief about one weight tensor is written down. A new family is one file, its rows in the table, one line."""

from postprior.errors import SettingError
from postprior.families.channelwise import Channelwise
from postprior.families.divergence import KL, kl
from postprior.families.factorized import Factorized
from postprior.families.family import Draw, Family, Natural, Role, frozen
from postprior.families.multiplicative import Multiplicative
from postprior.families.point import Point

FAMILIES: dict[str, type[Family]] = {
    "point": Point,
    "factorized": Factorized,
    "channelwise": Channelwise,
    "multiplicative": Multiplicative,
}

__all__ = [
    "FAMILIES",
    "KL",
    "Channelwise",
    "Draw",
    "Factorized",
    "Family",
    "Multiplicative",
    "Natural",
    "Point",
    "Role",
    "family_for",
    "frozen",
    "kl",
    "name_of",
]


def family_for(name: str, role: Role) -> type[Family]:
    """The family of that name where it is made for the role, else the factorised Gaussian."""
    if name not in FAMILIES:
        raise SettingError(f"family={name!r} is not known: expected one of {', '.join(FAMILIES)}")
    family = FAMILIES[name]
    return family if role in family.roles else Factorized


def name_of(family: Family) -> str:
    """The name a family goes by."""
    return next(name for name, kind in FAMILIES.items() if type(family) is kind)
