"""What the contract tests of the layers share."""

from collections.abc import Iterator

import pytest

from mistrnn.layers import RecurrentLayer


@pytest.fixture(scope="module", params=["auto", "reference"])
def backend(request: pytest.FixtureRequest) -> Iterator[str]:
    """Every backend of every layer passes the same tests: "auto" is the fused one where there is one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RecurrentLayer, "_backend", request.param)
        yield request.param


@pytest.fixture
def reference_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RecurrentLayer, "_backend", "reference")
