"""`torch.utils.model_zoo`: the older name of what `flow.hub` refuses."""

import pytest

from flowvm import hub
from flowvm.compat import model_zoo
from flowvm.errors import ArgumentError


def test_model_zoo_downloads_nothing(tmp_path):
    assert model_zoo.load_url is hub.load_state_dict_from_url
    with pytest.raises(ArgumentError, match=r"load_state_dict_from_url\('http://a/b.pth'\)"):
        model_zoo.load_url("http://a/b.pth", map_location="cpu", progress=False)
    with pytest.raises(ArgumentError, match=r"fetch the file yourself and read it with flow.load"):
        model_zoo._download_url_to_file("http://a/b.pth", str(tmp_path / "b.pth"))
    assert not list(tmp_path.iterdir())
