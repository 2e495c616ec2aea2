"""Who may do what: Role documents, as the API server reads them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Request:
    """One request, in the words of RBAC."""

    verb: str
    group: str
    resource: str
    """Resource with its subresource, such as `deployments/scale`."""
    name: str
    """Empty for a collection."""


def allowed(rules: Iterable[Mapping[str, Any]], request: Request) -> bool:
    """Whether some rule of a Role covers the request; a rule with resourceNames covers no collection."""
    return any(
        _covers(rule["apiGroups"], request.group)
        and _covers(rule["resources"], request.resource)
        and _covers(rule["verbs"], request.verb)
        and (not rule.get("resourceNames") or request.name in rule["resourceNames"])
        for rule in rules
    )


def matches(selector: str, labels: Mapping[str, str]) -> bool:
    """Label selectors of the forms `a=b` and `a in (b,c)`, joined by commas."""
    return all(_term(term, labels) for term in _terms(selector))


def _terms(selector: str) -> list[str]:
    terms, depth, start = [], 0, 0
    for index, letter in enumerate(selector + ","):
        depth += {"(": 1, ")": -1}.get(letter, 0)
        if letter == "," and depth == 0:
            terms.append(selector[start:index].strip())
            start = index + 1
    return [term for term in terms if term]


def _term(term: str, labels: Mapping[str, str]) -> bool:
    if " in (" in term:
        key, _, values = term.partition(" in (")
        return labels.get(key) in [value.strip() for value in values.rstrip(")").split(",")]
    key, _, value = term.partition("=")
    return labels.get(key) == value.lstrip("=")


def _covers(given: Iterable[str], asked: str) -> bool:
    return asked in given or "*" in given
