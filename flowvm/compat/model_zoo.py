"""`torch.utils.model_zoo`: an older name of functions that `flow.hub` refuses."""

from flowvm.hub import _download_url_to_file as _download_url_to_file
from flowvm.hub import load_state_dict_from_url as load_state_dict_from_url

load_url = load_state_dict_from_url
