"""Layers that read OneFlow's record files, on the CPU: a reader, decoders, and what is done to
images before they are one tensor.

A reader gives a Batch of records; a decoder makes a tensor of one feature of each, or a Batch of
images (height, width, channels), which `nn.image.Resize` or CropMirrorNormalize makes one tensor.
With `placement` and `sbp` tensors are global: with split(0) each rank reads its part of the files
and of the batch.  They are sources of data: a graph cannot hold them, so call them outside.  Images
are decoded by Pillow, which is asked for where it is needed.
"""

from __future__ import annotations

import importlib
import io
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from flowvm import ops
from flowvm.eager.tensor import Tensor
from flowvm.errors import ArgumentError, ArgumentTypeError, ConfigError, FileError
from flowvm.files.records import parsed, records
from flowvm.meta.arrays import Array
from flowvm.meta.dtype import as_dtype, float32, int8, uint8
from flowvm.meta.placements import as_sbps, cut, rank_and_size
from flowvm.nn.module import Module
from flowvm.ops.random.generator import default_generator

if TYPE_CHECKING:
    from types import ModuleType

    from flowvm.meta.device import DeviceLike
    from flowvm.meta.dtype import DTypeLike


# public: nn (late)


# not public
class Batch(list[Any]):
    """Records, images or bytes of one batch; `where` is the placement and SBP of what becomes of
    them, None for a local tensor.
    """

    def __init__(
        self, items: Any, where: tuple[Any, Any] | None, device: DeviceLike | None = None
    ) -> None:
        super().__init__(items)
        self.where, self.device = where, device

    def like(self, items: Any) -> Batch:
        """The batch of other items."""
        return Batch(items, self.where, self.device)

    def tensor(self, array: Array, dtype: Any = None) -> Tensor:
        """The tensor of an array of this rank's part."""
        tensor = ops.tensor(array, dtype=dtype)
        if self.where is not None:
            return tensor.to_global(*self.where)
        return tensor if self.device is None else tensor.to(self.device)


def _share(what: str, total: int, where: tuple[Any, Any] | None) -> tuple[int, int, int]:
    """This rank's part of `total` along split(0): its number, the number of parts, its length."""
    if where is None:
        return 0, 1, total
    placement, sbp = where
    place = placement.place_of(rank_and_size()[0])
    number, parts = 0, 1
    for one, count, k in zip(sbp, placement.shape, place or (0,) * len(sbp), strict=True):
        if one.is_split and one.dim == 0:
            number, parts = number * count + k, parts * count
        elif one.is_split:
            raise ArgumentError(f"{what}: a batch is cut along dimension 0, got {one!r}")
    begin, end = cut(total, parts, number)
    return number, parts, 0 if place is None else end - begin


def _where(what: str, placement: Any, sbp: Any, device: Any) -> tuple[Any, Any] | None:
    if placement is None:
        if sbp is not None:
            raise ArgumentTypeError(f"{what}: sbp needs placement")
        return None
    if sbp is None or device is not None:
        raise ArgumentTypeError(f"{what}: placement needs sbp, and says the device")
    return placement, as_sbps(sbp, placement)


class OFRecordReader(Module):
    """Called, it gives the next `batch_size` records of a folder's files, which it reads in turn
    and without end: `part_name_prefix` and a number from 0, of `part_name_suffix_length` digits at
    least.

    data_part_num        how many files
    random_shuffle       a record is one of the next `shuffle_buffer_size`, at random
    shuffle_after_epoch  files are read in another order each time
    random_seed          of both; -1 takes flow's generator

    FileError for a file that is damaged.

    >>> import pathlib, tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> _ = pathlib.Path(folder.name, "part-0").write_bytes(bytes(8) * 3)  # three empty records
    >>> nn.OFRecordReader(folder.name, batch_size=2)()
    [{}, {}]
    """

    def __init__(
        self,
        ofrecord_dir: str,
        batch_size: int = 1,
        data_part_num: int = 1,
        part_name_prefix: str = "part-",
        part_name_suffix_length: int = -1,
        random_shuffle: bool = False,
        shuffle_buffer_size: int = 1024,
        shuffle_after_epoch: bool = False,
        random_seed: int = -1,
        device: DeviceLike | None = None,
        placement: Any = None,
        sbp: Any = None,
        name: str | None = None,
    ) -> None:
        super().__init__()
        if batch_size < 1 or data_part_num < 1 or shuffle_buffer_size < 1:
            raise ArgumentError("OFRecordReader: sizes and numbers of files are 1 or more")
        self.where = _where("OFRecordReader", placement, sbp, device)
        self.device = device
        digits = max(part_name_suffix_length, 1)
        folder = Path(ofrecord_dir)
        paths = [folder / f"{part_name_prefix}{k:0{digits}d}" for k in range(data_part_num)]
        number, parts, self.batch_size = _share("OFRecordReader", batch_size, self.where)
        if data_part_num < parts:
            raise ArgumentError(f"OFRecordReader: {parts} ranks read {data_part_num} files")
        begin, end = cut(data_part_num, parts, number)
        self.paths = paths[begin:end]
        missing = [str(path) for path in self.paths if not path.is_file()]
        if missing:
            raise FileError(f"OFRecordReader: there is no {missing[0]!r}")
        self.random_shuffle, self.shuffle_after_epoch = random_shuffle, shuffle_after_epoch
        self.shuffle_buffer_size = shuffle_buffer_size
        self._rng = _numbers(random_seed)
        self._records = self._shuffled() if random_shuffle else self._read()

    def _read(self) -> Iterator[bytes]:
        paths = [*self.paths]
        while True:
            count = 0
            for path in paths:
                for record in records(path):
                    count += 1
                    yield record
            if count == 0:
                raise FileError(f"OFRecordReader: there are no records in {str(paths[0].parent)!r}")
            if self.shuffle_after_epoch:
                self._rng.shuffle(paths)

    def _shuffled(self) -> Iterator[bytes]:
        source, held = self._read(), list[bytes]()
        for record in source:
            if len(held) < self.shuffle_buffer_size:
                held.append(record)
                continue
            k = int(self._rng.integers(len(held)))
            yield held[k]
            held[k] = record

    def forward(self) -> Batch:
        records = (next(self._records) for _ in range(self.batch_size))
        return Batch(map(parsed, records), self.where, self.device)


OfrecordReader = OFRecordReader  # public: nn (late)


def _numbers(seed: int | None) -> np.random.Generator:
    """A generator of NumPy's by a seed, or by flow's generator for None and -1."""
    if seed is None or seed == -1:
        seed = int(ops.randint(0, 1 << 62, (), generator=default_generator).item())
    return np.random.default_rng(seed)


def _feature(record: Any, name: str) -> Any:
    try:
        return record[name]
    except KeyError:
        raise ArgumentError(f"a record has no {name!r}, but {sorted(record)}") from None


def _bytes(record: object, name: str) -> bytes:
    feature = _feature(record, name)
    if not isinstance(feature, list) or len(feature) != 1:
        raise ArgumentError(f"{name!r} of a record is no bytes")
    data: bytes = feature[0]
    return data


class OFRecordRawDecoder(Module):
    """The feature `blob_name` of each record of a batch, as one tensor (batch, *shape).

    truncate             longer features are cut, and shorter ones end in zeros
    dim1_varying_length  the first dimension of `shape` is the most that a feature has; zeros behind

    ArgumentError for a feature of another size.

    >>> from flowvm.nn.modules.records import Batch
    >>> batch = Batch([{"x": np.array([1, 2])}, {"x": np.array([3, 4])}], None)  # a reader gives it
    >>> nn.OFRecordRawDecoder("x", (2,), flow.int32)(batch)
    tensor([[1, 2],
            [3, 4]], dtype=int32)
    """

    def __init__(
        self,
        blob_name: str,
        shape: Sequence[int],
        dtype: DTypeLike,
        dim1_varying_length: bool = False,
        truncate: bool = False,
        auto_zero_padding: bool = False,
        name: str | None = None,
    ) -> None:
        super().__init__()
        self.blob_name, self.shape, self.dtype = blob_name, tuple(shape), as_dtype(dtype)
        self.fills = dim1_varying_length or truncate or auto_zero_padding
        self.cuts = truncate or auto_zero_padding

    def forward(self, input: Batch) -> Tensor:
        rows = np.zeros((len(input), math.prod(self.shape)), self.dtype.storage)
        for row, record in zip(rows, input, strict=True):
            feature = _feature(record, self.blob_name)
            if isinstance(feature, list):
                feature = np.frombuffer(b"".join(feature), np.uint8)
                if self.dtype is int8:
                    feature = feature.view(np.int8)
            many = len(feature) > row.size and not self.cuts
            if many or (len(feature) < row.size and not self.fills):
                raise ArgumentError(
                    f"OFRecordRawDecoder: {self.blob_name!r} has {len(feature)} numbers, and shape "
                    f"{self.shape} {row.size}"
                )
            row[: len(feature)] = feature[: row.size]
        return input.tensor(rows.reshape((len(input), *self.shape)), self.dtype)


OfrecordRawDecoder = OFRecordRawDecoder  # public: nn (late)


class OFRecordBytesDecoder(Module):
    """The bytes `blob_name` of each record of a batch: a Batch of arrays.

    >>> from flowvm.nn.modules.records import Batch
    >>> nn.OFRecordBytesDecoder("x")(Batch([{"x": [b"ab"]}], None))
    [array([97, 98], dtype=uint8)]
    """

    def __init__(self, blob_name: str, name: str | None = None) -> None:
        super().__init__()
        self.blob_name = blob_name

    def forward(self, input: Batch) -> Batch:
        return input.like(np.frombuffer(_bytes(r, self.blob_name), np.uint8) for r in input)


# --- images ---------------------------------------------------------------------------------------


def _pillow() -> ModuleType:
    try:
        return importlib.import_module("PIL.Image")
    except ImportError as error:
        raise ConfigError(
            "images of record files are decoded by Pillow, which is not installed: "
            "pip install pillow"
        ) from error


def _decoded(data: bytes, color_space: str) -> Array:
    """An encoded image as bytes (height, width, channels), its colours in this order."""
    order = color_space.upper()
    if order not in ("RGB", "BGR", "GRAY"):
        raise ArgumentError(f"color_space is 'RGB', 'BGR' or 'GRAY', got {color_space!r}")
    image = _pillow().open(io.BytesIO(data)).convert("L" if order == "GRAY" else "RGB")
    array = np.asarray(image)
    array = array[..., None] if array.ndim == 2 else array
    return array[..., ::-1] if order == "BGR" else array


def _resized(image: Array, width: int, height: int, kind: str) -> Array:
    pillow = _pillow()
    ways = {
        "auto": pillow.BILINEAR, "bilinear": pillow.BILINEAR, "area": pillow.BOX,
        "nearest_neighbor": pillow.NEAREST, "bicubic": pillow.BICUBIC,
    }  # fmt: skip
    if kind not in ways:
        raise ArgumentError(f"interpolation_type is one of {', '.join(ways)}, got {kind!r}")
    if image.shape[2] == 1:
        resized = np.asarray(pillow.fromarray(image[..., 0]).resize((width, height), ways[kind]))
        return resized[..., None]
    contiguous = np.ascontiguousarray(image)
    return np.asarray(pillow.fromarray(contiguous).resize((width, height), ways[kind]))


class OFRecordImageDecoder(Module):
    """The image `blob_name` of each record of a batch: a Batch of bytes (height, width, channels),
    its colours as `color_space` says, "BGR", "RGB" or "GRAY".  ConfigError without Pillow.

    >>> nn.OFRecordImageDecoder("encoded", "RGB").color_space
    'RGB'
    """

    def __init__(self, blob_name: str, color_space: str = "BGR") -> None:
        super().__init__()
        self.blob_name, self.color_space = blob_name, color_space

    def forward(self, input: Batch) -> Batch:
        return input.like(_decoded(_bytes(r, self.blob_name), self.color_space) for r in input)


def _cropped(image: Array, rng: Any, attempts: int, areas: Any, ratios: Any) -> Array:
    """A part of the image, of a random share of its area and ratio of its sides; the middle where
    none of the attempts fits.
    """
    height, width = image.shape[:2]
    for _ in range(attempts):
        area = height * width * rng.uniform(*areas)
        ratio = math.exp(rng.uniform(*map(math.log, ratios)))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            top, column = rng.integers(height - h + 1), rng.integers(width - w + 1)
            return image[top : top + h, column : column + w]
    side = min(height, width)
    top, column = (height - side) // 2, (width - side) // 2
    return image[top : top + side, column : column + side]


class OFRecordImageDecoderRandomCrop(Module):
    """OFRecordImageDecoder of a random part of each image: of `random_area` of its area, and with
    sides of `random_aspect_ratio`; the square in the middle where no attempt fits.

    >>> nn.OFRecordImageDecoderRandomCrop("encoded", random_area=(0.5, 1.0)).crop
    (10, (0.5, 1.0), (0.75, 1.333333))
    """

    def __init__(
        self,
        blob_name: str,
        color_space: str = "BGR",
        num_attempts: int = 10,
        random_seed: int | None = None,
        random_area: Sequence[float] = (0.08, 1.0),
        random_aspect_ratio: Sequence[float] = (0.75, 1.333333),
    ) -> None:
        super().__init__()
        self.blob_name, self.color_space = blob_name, color_space
        self.crop = (num_attempts, random_area, random_aspect_ratio)
        self._rng = _numbers(random_seed)

    def forward(self, input: Batch) -> Batch:
        images = (_decoded(_bytes(r, self.blob_name), self.color_space) for r in input)
        return input.like(_cropped(image, self._rng, *self.crop) for image in images)


class OFRecordImageGpuDecoderRandomCropResize(Module):
    """Images of a Batch of bytes, a random part of each, in one size: (batch, height, width, 3) of
    bytes.  It runs on the CPU; arguments about workers and memory are taken.

    >>> nn.OFRecordImageGpuDecoderRandomCropResize(224, 192).size
    (224, 192)
    """

    def __init__(
        self,
        target_width: int,
        target_height: int,
        num_attempts: int = 10,
        seed: int = 0,
        random_area: Sequence[float] = (0.08, 1.0),
        random_aspect_ratio: Sequence[float] = (0.75, 1.333333),
        num_workers: int = 3,
        warmup_size: int = 6400,
        max_num_pixels: int = 67108864,
    ) -> None:
        super().__init__()
        self.size = (target_width, target_height)
        self.crop = (num_attempts, random_area, random_aspect_ratio)
        self._rng = _numbers(seed)

    def forward(self, input: Batch) -> Tensor:
        images = (_cropped(_decoded(d.tobytes(), "RGB"), self._rng, *self.crop) for d in input)
        rows = [_resized(image, *self.size, "bilinear") for image in images]
        return input.tensor(np.stack(rows), uint8)


# not public
class ImageResize(Module):
    """A Batch of images in one size: (batch, height, width, channels), the factors by which each
    grew (batch, 2), width first, and None.  With `keep_aspect_ratio` a Batch of images whose
    shorter or longer side is `target_size`, their factors, and their sizes.
    """

    def __init__(
        self,
        target_size: Any = None,
        min_size: int | None = None,
        max_size: int | None = None,
        keep_aspect_ratio: bool = False,
        resize_side: str = "shorter",
        channels: int = 3,
        dtype: DTypeLike | None = None,
        interpolation_type: str = "auto",
        name: str | None = None,
    ) -> None:
        super().__init__()
        pair = isinstance(target_size, (list, tuple)) and len(target_size) == 2
        if keep_aspect_ratio != isinstance(target_size, int) or not (pair or keep_aspect_ratio):
            raise ArgumentError(
                "image.Resize: target_size is (width, height), or with keep_aspect_ratio one "
                f"number, got {target_size!r}"
            )
        if resize_side not in ("shorter", "longer"):
            raise ArgumentError(
                f"image.Resize: resize_side is 'shorter' or 'longer', got {resize_side!r}"
            )
        self.target_size, self.keep_aspect_ratio = target_size, keep_aspect_ratio
        self.bounds, self.longer = (min_size or 0, max_size or 0), resize_side == "longer"
        self.dtype, self.kind = dtype, interpolation_type

    def forward(self, input: Batch) -> tuple[Any, Tensor, Any]:
        sizes = [self._size(*image.shape[1::-1]) for image in input]
        images = [_resized(i, *size, self.kind) for i, size in zip(input, sizes, strict=True)]
        grown = [[w / i.shape[1], h / i.shape[0]] for i, (w, h) in zip(input, sizes, strict=True)]
        scale = input.tensor(np.array(grown, np.float32), float32)
        if self.keep_aspect_ratio:
            return input.like(images), scale, input.tensor(np.array(sizes, np.int32))
        return input.tensor(np.stack(images), self.dtype or uint8), scale, None

    def _size(self, width: int, height: int) -> tuple[int, int]:
        if not self.keep_aspect_ratio:
            return self.target_size[0], self.target_size[1]
        side = max(width, height) if self.longer else min(width, height)
        factor = self.target_size / side
        least, most = self.bounds
        if least and min(width, height) * factor < least:
            factor = least / min(width, height)
        if most and max(width, height) * factor > most:
            factor = most / max(width, height)
        return max(1, round(width * factor)), max(1, round(height * factor))


class CropMirrorNormalize(Module):
    """Images (batch, height, width, channels) of bytes, or a Batch of them, cut to `crop_h` and
    `crop_w` (0: whole) at the place `crop_pos_y`, `crop_pos_x` of what is left over; those that
    `mirror` names turned from left to right; less `mean` and divided by `std`: (batch, channels,
    height, width).

    >>> images = flow.zeros(2, 4, 4, 3, dtype=flow.uint8)
    >>> nn.CropMirrorNormalize("RGB", crop_h=2, crop_w=2)(images).shape
    flow.Size([2, 3, 2, 2])
    """

    def __init__(
        self,
        color_space: str = "BGR",
        output_layout: str = "NCHW",
        crop_h: int = 0,
        crop_w: int = 0,
        crop_pos_y: float = 0.5,
        crop_pos_x: float = 0.5,
        mean: Sequence[float] = (0.0,),
        std: Sequence[float] = (1.0,),
        output_dtype: Any = float32,
    ) -> None:
        super().__init__()
        if output_layout not in ("NCHW", "NHWC"):
            raise ArgumentError(f"output_layout is 'NCHW' or 'NHWC', got {output_layout!r}")
        self.crop, self.position = (crop_h, crop_w), (crop_pos_y, crop_pos_x)
        self.mean, self.std, self.last = list(mean), list(std), output_layout == "NHWC"
        self.output_dtype = as_dtype(output_dtype)

    def _cut(self, image: Tensor) -> Any:
        for axis, length, share in zip((-3, -2), self.crop, self.position, strict=True):
            whole = image.shape[axis]
            size = length or whole
            if size > whole:
                raise ArgumentError(f"CropMirrorNormalize: {size} of {whole} pixels")
            begin = int((whole - size) * share)
            places = [slice(None)] * len(image.shape)
            places[axis] = slice(begin, begin + size)
            image = image[tuple(places)]
        return image

    def forward(self, input: Any, mirror: Tensor | None = None) -> Tensor:
        if isinstance(input, Tensor):
            x = self._cut(input)
        else:
            x = input.tensor(np.stack([self._cut(image) for image in input]))
        x = x.to(float32)
        if mirror is not None:
            turned = mirror.reshape((-1, 1, 1, 1)) != 0
            x = ops.where(turned, x.flip(2), x)
        mean = x.new_tensor(self.mean, dtype=float32)
        std = x.new_tensor(self.std, dtype=float32)
        x = ((x - mean) / std).to(self.output_dtype)
        out: Tensor = x if self.last else x.permute((0, 3, 1, 2)).contiguous()
        return out


class CoinFlip(Module):
    """`batch_size` numbers of int8 that are 1 with `probability`, else 0.

    >>> nn.CoinFlip(3, probability=1.0)()
    tensor([1, 1, 1], dtype=int8)
    """

    def __init__(
        self,
        batch_size: int = 1,
        random_seed: int | None = None,
        probability: float = 0.5,
        device: DeviceLike | None = None,
        placement: Any = None,
        sbp: Any = None,
    ) -> None:
        super().__init__()
        if batch_size < 1 or not 0.0 <= probability <= 1.0:
            raise ArgumentError(
                f"CoinFlip: batch_size is 1 or more and probability from 0 to 1, got {batch_size} "
                f"and {probability}"
            )
        self.batch_size, self.probability = batch_size, probability
        self.where = _where("CoinFlip", placement, sbp, device)
        self.device = device
        self.generator = None
        if random_seed is not None and random_seed != -1:
            self.generator = ops.Generator().manual_seed(random_seed)

    def forward(self) -> Tensor:
        if self.where is None:
            drawn = ops.rand(self.batch_size, generator=self.generator, device=self.device)
        else:
            placement, sbp = self.where
            drawn = ops.rand(
                self.batch_size, generator=self.generator, placement=placement, sbp=sbp
            )
        out: Tensor = (drawn < self.probability).to(int8)
        return out
