"""What is told of a start that fails."""

from __future__ import annotations

import pytest

from trio_kubelet.config.load import ConfigurationError
from trio_kubelet.node.events import told_as_event


@pytest.mark.parametrize(
    "error", [OSError("error creating root directory: no"), ConfigurationError("no cgroups")]
)
def test_each_failed_step_of_the_start_is_an_event(
    error: Exception, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(type(error)), told_as_event("n1"):
        raise error
    [line] = capfd.readouterr().err.splitlines()
    assert '"Event occurred" object="n1" kind="Node" type="Warning" reason="KubeletSetupFailed"' in line
    assert str(error) in line
