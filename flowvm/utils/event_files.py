"""TensorBoard's event files, written with the messages of the package tensorboard.

What SummaryWriter does where tensorboardX is not installed.  Each method makes one message of its
arguments, arrays and numbers, and hands it to tensorboard's writer of files, which has its own
thread.  A message of a plugin (text, hyperparameters, precision and recall) names it in its
metadata.
"""

from __future__ import annotations

import importlib
import io
import math
import os
import socket
import struct
import time
import wave
import zlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from flowvm.errors import ArgumentError, ConfigError
from flowvm.meta.arrays import Array

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import ModuleType


PACKAGE = "tensorboard.compat.proto"
# what tensorboard's own messages cannot say in a few lines: tensorboardX has it
ELSEWHERE = {
    "add_custom_scalars", "add_embedding", "add_image_with_boxes", "add_mesh",
    "add_onnx_graph", "add_video",
}  # fmt: skip


def proto(name: str, package: str = PACKAGE) -> ModuleType:
    """The module of TensorBoard's messages with this name."""
    return importlib.import_module(f"{package}.{name}_pb2")


def png(image: Array) -> bytes:
    """An image (height, width, 1, 3 or 4) of bytes as a PNG file."""
    height, width, channels = image.shape
    kind = {1: 0, 3: 2, 4: 6}[channels]

    def chunk(name: bytes, data: bytes) -> bytes:
        checked = name + data
        return struct.pack(">I", len(data)) + checked + struct.pack(">I", zlib.crc32(checked))

    rows = np.concatenate([np.zeros((height, 1), np.uint8), image.reshape(height, -1)], 1)
    head = struct.pack(">IIBBBBB", width, height, 8, kind, 0, 0, 0)
    body = zlib.compress(rows.tobytes())
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", body) + chunk(b"IEND", b"")


def pixels(image: object, form: str) -> Array:
    """An image of dimensions `form` ("CHW", "HW", "NCHW" and so on), floats from 0 to 1 or bytes,
    as bytes (height, width, channels); several side by side.
    """
    array = np.asarray(image)
    form = form.upper()
    if array.ndim != len(form) or not set("HW") <= set(form) <= set("NHWC"):
        raise ArgumentError(
            f"add_image: dataformats names the dimensions, such as 'CHW', and {form!r} does not "
            f"name those of shape {array.shape}"
        )
    array = array.transpose([form.index(d) for d in "NHWC" if d in form])
    array = array if "C" in form else array[..., None]
    array = array if "N" in form else array[None]
    if array.shape[-1] not in (1, 3, 4):
        raise ArgumentError(f"add_image: an image has 1, 3 or 4 channels, got {array.shape[-1]}")
    if array.dtype != np.uint8:
        array = (np.clip(array, 0.0, 1.0) * 255.0).astype(np.uint8)
    count = len(array)
    across = min(8, count) or 1
    lacking = -count % across
    array = np.concatenate([array, np.zeros((lacking, *array.shape[1:]), np.uint8)])
    lines = array.reshape(-1, across, *array.shape[1:])
    joined: Array = np.concatenate([np.concatenate(list(line), 1) for line in lines], 0)
    return joined


class EventWriter:
    """A writer of event files; `add_...` as SummaryWriter's."""

    def __init__(
        self,
        log_dir: str | os.PathLike[str] | None = None,
        comment: str = "",
        purge_step: int | None = None,
        max_queue: int = 10,
        flush_secs: int = 120,
        filename_suffix: str = "",
    ) -> None:
        files = "tensorboard.summary.writer.event_file_writer"
        try:
            self._files = importlib.import_module(files).EventFileWriter
        except ImportError as error:
            raise ConfigError(
                "flow.utils.tensorboard.SummaryWriter writes through tensorboardX or tensorboard, "
                "and neither is installed: pip install tensorboard, which also shows what it wrote"
            ) from error
        begun = time.strftime("%b%d_%H-%M-%S")
        default = os.path.join("runs", f"{begun}_{socket.gethostname()}{comment}")
        self.logdir = os.fspath(log_dir) if log_dir is not None else default
        self._options = (max_queue, flush_secs, filename_suffix)
        self._writers: dict[str, Any] = {}
        self._closed = False
        if purge_step is not None:
            status = proto("event").SessionLog(status=proto("event").SessionLog.START)
            self._event({"session_log": status}, purge_step, None)
        else:
            self._writer("")

    def _writer(self, run: str) -> Any:
        """The writer of a folder below this one's."""
        if run not in self._writers:
            self._writers[run] = self._files(os.path.join(self.logdir, run), *self._options)
        return self._writers[run]

    def _event(
        self, what: Mapping[str, object], step: Any, walltime: float | None, run: str = ""
    ) -> None:
        event = proto("event").Event(wall_time=time.time() if walltime is None else walltime)
        for name, message in what.items():
            if isinstance(message, bytes):
                setattr(event, name, message)
            else:
                getattr(event, name).CopyFrom(message)
        if step is not None:
            event.step = int(step)
        self._writer(run).add_event(event)

    def _add(
        self, tag: str, step: object, walltime: float | None, run: str = "", **value: object
    ) -> None:
        summary = proto("summary").Summary
        self._event(
            {"summary": summary(value=[summary.Value(tag=tag, **value)])}, step, walltime, run
        )

    def _metadata(self, plugin: str, content: bytes = b"", **more: object) -> Any:
        kind = proto("summary").SummaryMetadata
        return kind(plugin_data=kind.PluginData(plugin_name=plugin, content=content), **more)

    # --- numbers ------------------------------------------------------------------------------

    def add_scalar(
        self,
        tag: str,
        scalar_value: object,
        global_step: object = None,
        walltime: float | None = None,
        new_style: bool = False,
        double_precision: bool = False,
        display_name: str = "",
        summary_description: str = "",
    ) -> None:
        """A number; in double precision, or as the new style's tensor, if asked."""
        number = float(np.asarray(scalar_value).reshape(()))
        if not new_style and not double_precision:
            more = self._metadata(
                "scalars", display_name=display_name, summary_description=summary_description
            )
            metadata = {"metadata": more} if display_name or summary_description else {}
            self._add(tag, global_step, walltime, simple_value=number, **metadata)
            return
        types, kind = proto("types"), "double" if double_precision else "float"
        tensor = proto("tensor").TensorProto(
            dtype=getattr(types, f"DT_{kind.upper()}"), **{f"{kind}_val": [number]}
        )
        self._add(tag, global_step, walltime, tensor=tensor, metadata=self._metadata("scalars"))

    def add_scalars(
        self,
        main_tag: str,
        tag_scalar_dict: dict[str, Any],
        global_step: object = None,
        walltime: float | None = None,
    ) -> None:
        """Numbers in one picture: each in a folder of its own, `<main_tag>_<name>`."""
        for name, value in tag_scalar_dict.items():
            run = f"{main_tag.replace('/', '_')}_{name}"
            number = float(np.asarray(value).reshape(()))
            self._add(main_tag, global_step, walltime, run, simple_value=number)

    def add_tensor(
        self, tag: str, tensor: object, global_step: object = None, walltime: float | None = None
    ) -> None:
        """A whole tensor."""
        make_proto = importlib.import_module("tensorboard.util.tensor_util").make_tensor_proto
        self._add(tag, global_step, walltime, tensor=make_proto(np.asarray(tensor)))

    def add_histogram(
        self,
        tag: str,
        values: object,
        global_step: object = None,
        bins: Any = "tensorflow",
        walltime: float | None = None,
        max_bins: int | None = None,
    ) -> None:
        """The number of values in each of some ranges: `bins` is a rule of `numpy.histogram`,
        edges, or "tensorflow", ranges that grow by a tenth away from 0.
        """
        flat = np.asarray(values, np.float64).reshape(-1)
        if flat.size == 0:
            raise ArgumentError("add_histogram: there are no values")
        counts, edges = np.histogram(
            flat, _edges() if isinstance(bins, str) and bins == "tensorflow" else bins
        )
        if max_bins is not None and len(counts) > max_bins:
            each = -(-len(counts) // max_bins)
            counts = np.add.reduceat(counts, range(0, len(counts), each))
            edges = np.concatenate([edges[:-1:each], edges[-1:]])
        nonempty = np.flatnonzero(counts)
        first, last = int(nonempty[0]), int(nonempty[-1]) + 1
        self.add_histogram_raw(
            tag, flat.min(), flat.max(), flat.size, flat.sum(), flat @ flat,
            [edges[first], *edges[first + 1 : last + 1]], [0, *counts[first:last]],
            global_step, walltime,
        )  # fmt: skip

    def add_histogram_raw(
        self,
        tag: str,
        min: Any,
        max: Any,
        num: Any,
        sum: Any,
        sum_squares: Any,
        bucket_limits: Sequence[float],
        bucket_counts: Sequence[float],
        global_step: object = None,
        walltime: float | None = None,
    ) -> None:
        """A histogram whose numbers are known: upper ends of ranges, and counts."""
        if len(bucket_limits) != len(bucket_counts):
            raise ArgumentError(
                f"add_histogram_raw: {len(bucket_limits)} limits and {len(bucket_counts)} counts"
            )
        histogram = proto("summary").HistogramProto(
            min=float(min), max=float(max), num=float(num), sum=float(sum),
            sum_squares=float(sum_squares), bucket_limit=[float(n) for n in bucket_limits],
            bucket=[float(n) for n in bucket_counts],
        )  # fmt: skip
        self._add(tag, global_step, walltime, histo=histogram)

    def add_pr_curve(
        self,
        tag: str,
        labels: object,
        predictions: object,
        global_step: object = None,
        num_thresholds: int = 127,
        weights: object = None,
        walltime: float | None = None,
    ) -> None:
        """Precision and recall of predictions from 0 to 1 at evenly spaced thresholds."""
        truth = np.asarray(labels, np.float64).reshape(-1)
        shares = np.asarray(predictions, np.float64).reshape(-1)
        each = np.ones_like(truth) if weights is None else np.asarray(weights, float).reshape(-1)
        place = np.floor(shares * (num_thresholds - 1)).astype(np.int64)
        ahead = [
            np.bincount(place, w * each, num_thresholds)[::-1].cumsum()[::-1]
            for w in (truth, 1.0 - truth)
        ]
        positive, wrong = ahead
        negative, missed = wrong[0] - wrong, positive[0] - positive
        precision = positive / np.maximum(positive + wrong, 1e-7)
        recall = positive / np.maximum(positive + missed, 1e-7)
        self.add_pr_curve_raw(
            tag, positive, wrong, negative, missed, precision, recall, global_step,
            num_thresholds, weights, walltime,
        )  # fmt: skip

    def add_pr_curve_raw(
        self,
        tag: str,
        true_positive_counts: object,
        false_positive_counts: object,
        true_negative_counts: object,
        false_negative_counts: object,
        precision: object,
        recall: object,
        global_step: object = None,
        num_thresholds: int = 127,
        weights: object = None,
        walltime: float | None = None,
    ) -> None:
        """Precision and recall whose counts at each threshold are known."""
        rows = np.stack(
            [
                np.asarray(row, np.float32).reshape(-1)
                for row in (
                    true_positive_counts, false_positive_counts, true_negative_counts,
                    false_negative_counts, precision, recall,
                )
            ]
        )  # fmt: skip
        proto = importlib.import_module("tensorboard.util.tensor_util").make_tensor_proto(rows)
        plugin = importlib.import_module("tensorboard.plugins.pr_curve.plugin_data_pb2")
        content = plugin.PrCurvePluginData(version=0, num_thresholds=num_thresholds)
        metadata = self._metadata("pr_curves", content.SerializeToString())
        self._add(tag, global_step, walltime, tensor=proto, metadata=metadata)

    # --- pictures, sounds, texts --------------------------------------------------------------

    def add_image(
        self,
        tag: str,
        img_tensor: object,
        global_step: object = None,
        walltime: float | None = None,
        dataformats: str = "CHW",
    ) -> None:
        """An image, floats from 0 to 1 or bytes."""
        image = pixels(img_tensor, dataformats)
        height, width, channels = image.shape
        message = proto("summary").Summary.Image(
            height=height, width=width, colorspace=channels, encoded_image_string=png(image)
        )
        self._add(tag, global_step, walltime, image=message)

    def add_images(
        self,
        tag: str,
        img_tensor: object,
        global_step: object = None,
        walltime: float | None = None,
        dataformats: str = "NCHW",
    ) -> None:
        """Images side by side, eight in a line."""
        self.add_image(tag, img_tensor, global_step, walltime, dataformats)

    def add_figure(
        self,
        tag: str,
        figure: object,
        global_step: object = None,
        close: bool = True,
        walltime: float | None = None,
    ) -> None:
        """A figure of matplotlib, or several, as images; it is closed afterwards if `close`."""
        several = figure if isinstance(figure, (list, tuple)) else [figure]
        images = []
        for one in several:
            canvas = importlib.import_module("matplotlib.backends.backend_agg").FigureCanvasAgg(one)
            canvas.draw()
            images.append(np.asarray(canvas.buffer_rgba()))
            if close:
                importlib.import_module("matplotlib.pyplot").close(one)
        self.add_image(tag, np.stack(images), global_step, walltime, "NHWC")

    def add_audio(
        self,
        tag: str,
        snd_tensor: object,
        global_step: object = None,
        sample_rate: int = 44100,
        walltime: float | None = None,
    ) -> None:
        """A sound of numbers from -1 to 1."""
        sound = np.clip(np.asarray(snd_tensor, np.float64).reshape(-1), -1.0, 1.0)
        file = io.BytesIO()
        with wave.open(file, "wb") as sink:
            sink.setnchannels(1)
            sink.setsampwidth(2)
            sink.setframerate(sample_rate)
            sink.writeframes((sound * 32767.0).astype("<i2").tobytes())
        message = proto("summary").Summary.Audio(
            sample_rate=sample_rate, num_channels=1, length_frames=len(sound),
            encoded_audio_string=file.getvalue(), content_type="audio/wav",
        )  # fmt: skip
        self._add(tag, global_step, walltime, audio=message)

    def add_text(
        self, tag: str, text_string: str, global_step: object = None, walltime: float | None = None
    ) -> None:
        """A text, in Markdown."""
        tensor = proto("tensor").TensorProto(
            dtype=proto("types").DT_STRING, string_val=[text_string.encode()],
            tensor_shape=proto("tensor_shape").TensorShapeProto(
                dim=[proto("tensor_shape").TensorShapeProto.Dim(size=1)]
            ),
        )  # fmt: skip
        metadata = self._metadata("text")
        self._add(f"{tag}/text_summary", global_step, walltime, tensor=tensor, metadata=metadata)

    # --- runs and graphs ----------------------------------------------------------------------

    def add_hparams(
        self,
        hparam_dict: dict[str, Any],
        metric_dict: dict[str, Any],
        hparam_domain_discrete: dict[str, Sequence[Any]] | None = None,
        run_name: str | None = None,
        global_step: object = None,
    ) -> None:
        """Hyperparameters, and what came of them, in a folder of their own: `run_name`, by default
        the time.
        """
        for name, value in hparam_dict.items():
            if not isinstance(value, (bool, int, float, str)):
                raise ArgumentError(
                    f"add_hparams: {name} is a number, a bool or a text, got {type(value).__name__}"
                )
        api = importlib.import_module("tensorboard.plugins.hparams.api_pb2")
        plugin = importlib.import_module("tensorboard.plugins.hparams.plugin_data_pb2")
        kinds = {bool: "BOOL", str: "STRING"}
        infos = []
        for name, value in hparam_dict.items():
            info = api.HParamInfo(
                name=name, type=getattr(api, f"DATA_TYPE_{kinds.get(type(value), 'FLOAT64')}")
            )
            if hparam_domain_discrete and name in hparam_domain_discrete:
                info.domain_discrete.extend(list(hparam_domain_discrete[name]))
            infos.append(info)
        metrics = [api.MetricInfo(name=api.MetricName(tag=tag)) for tag in metric_dict]
        begun = plugin.SessionStartInfo()
        for name, value in hparam_dict.items():
            field = {bool: "bool_value", str: "string_value"}.get(type(value), "number_value")
            setattr(begun.hparams[name], field, value)
        run = str(time.time()) if run_name is None else run_name
        parts = {
            "experiment": api.Experiment(hparam_infos=infos, metric_infos=metrics),
            "session_start_info": begun,
            "session_end_info": plugin.SessionEndInfo(status=api.Status.Value("STATUS_SUCCESS")),
        }
        for name, part in parts.items():
            content = plugin.HParamsPluginData(version=0, **{name: part})
            metadata = self._metadata("hparams", content.SerializeToString())
            self._add(f"_hparams_/{name}", None, None, run, metadata=metadata)
        for name, value in metric_dict.items():
            number = float(np.asarray(value).reshape(()))
            self._add(name, global_step, None, run, simple_value=number)

    def add_graph_def(self, graph: Any, walltime: float | None = None) -> None:
        """A graph, as TensorFlow's message."""
        self._event({"graph_def": graph.SerializeToString()}, None, walltime)

    def flush(self) -> None:
        """Have all of it in files."""
        for writer in self._writers.values():
            writer.flush()

    def close(self) -> None:
        """Write what is left, and end."""
        if not self._closed:
            self._closed = True
            for writer in self._writers.values():
                writer.close()

    def __getattr__(self, name: str) -> Any:
        if name in ELSEWHERE:
            raise ConfigError(
                f"SummaryWriter.{name} needs tensorboardX; tensorboard alone is installed: "
                "pip install tensorboardX"
            )
        raise AttributeError(f"SummaryWriter has no {name!r}")


def _edges() -> Array:
    """Ends of ranges that grow by a tenth, from 1e-12 to 1e20 and the same below 0."""
    count = math.ceil(math.log(1e32) / math.log(1.1))
    above = 1e-12 * 1.1 ** np.arange(count)
    return np.concatenate([-above[::-1], [0.0], above])
