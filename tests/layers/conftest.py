"""What the contract tests of the layers share."""

from collections.abc import Iterator

import pytest

from mistrnn.layers import RecurrentLayer


@pytest.fixture(scope="module", params=["auto", "plain"])
def form(request: pytest.FixtureRequest) -> Iterator[str]:
    """Every form of every layer answers to the same tests: "auto" is the fused one wherever there is one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RecurrentLayer, "_form", request.param)
        yield request.param


@pytest.fixture
def plain_form(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RecurrentLayer, "_form", "plain")
