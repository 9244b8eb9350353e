"""Writer of TensorBoard event files, which uses TensorBoard's own writer without torch and
TensorFlow. Checked with tensorboard 2.21."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Any

from voirkit_instruments.trackers import PREFIX, Tracker


class Writer(Tracker):
    """Writer of scalars by step number, and of strings, which TensorBoard shows as Markdown."""

    _writer: Any = None

    def write(self, step: int, figures: Mapping[str, float], texts: Mapping[str, str]) -> None:
        """Write each figure of a step as a scalar, and each string as a text."""
        from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
        from tensorboard.compat.proto.tensor_pb2 import TensorProto
        from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto

        values = [Summary.Value(tag=name, simple_value=value) for name, value in figures.items()]
        for name, text in texts.items():
            shape = TensorShapeProto(dim=[TensorShapeProto.Dim(size=1)])
            tensor = TensorProto(dtype="DT_STRING", string_val=[text.encode()], tensor_shape=shape)
            metadata = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name="text"))
            values.append(Summary.Value(tag=name, metadata=metadata, tensor=tensor))
        self._add(step, Summary(value=values))

    def _add(self, step: int, summary: Any) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        if self._writer is None:
            folder = self.words[0]
            parts = (
                (folder, os.path.basename(self.run_dir))
                if folder
                else (self.run_dir, "tensorboard")
            )
            self._writer = EventFileWriter(os.path.join(*parts))
        self._writer.add_event(Event(wall_time=time.time(), step=step, summary=summary))
        self._writer.flush()

    def end(self, step: int, report: str) -> None:
        """Write the report as a text, and close the file."""
        if report:
            self.write(step, {}, {f"{PREFIX}report": report})
        self._writer.close()
