"""The functions of torch inside of which it traces or compiles: what is called there are its own trials, on tensors without data, no calls
of the program. Checked with torch 2.1 and 2.15; a name that a version does not have is of another."""

from __future__ import annotations

DEAF: tuple[tuple[str, str], ...] = (
    # torch.compile: each frame that is compiled
    ("torch._dynamo.convert_frame", "CatchErrorsWrapper.__call__"),
    ("torch._dynamo.convert_frame", "ConvertFrame.__call__"),
    ("torch._dynamo.convert_frame", "ConvertFrameAssert.__call__"),
    ("torch._dynamo.convert_frame", "_compile"),
    ("torch._dynamo.eval_frame", "export"),
    ("torch._dynamo.eval_frame", "explain"),
    # its back ends, which compile a backward pass when it is first run
    ("torch._functorch.aot_autograd", "aot_module_simplified"),
    ("torch._functorch.aot_autograd", "create_aot_dispatcher_function"),
    ("torch._functorch.aot_autograd", "aot_export_module"),
    ("torch._inductor.compile_fx", "compile_fx"),
    ("torch._inductor.compile_fx", "compile_fx_inner"),
    ("torch._inductor.codecache", "PyCodeCache.load_by_key_path"),
    # graphs
    ("torch.fx._symbolic_trace", "Tracer.trace"),
    ("torch.fx._symbolic_trace", "symbolic_trace"),
    ("torch.fx.experimental.proxy_tensor", "dispatch_trace"),
    ("torch.fx.passes.fake_tensor_prop", "FakeTensorProp.propagate"),
    ("torch.export", "export"),
    ("torch.export", "export_for_training"),
    ("torch.export._trace", "_export"),
    ("torch.export._trace", "_export_for_training"),
    ("torch.export.exported_program", "ExportedProgram.run_decompositions"),
    ("torch.onnx", "export"),
    ("torch.onnx.utils", "export"),
    # TorchScript
    ("torch.jit._script", "script"),
    ("torch.jit._trace", "trace"),
    ("torch.jit._trace", "trace_module"),
    ("torch.jit._freeze", "freeze"),
    ("torch.jit._recursive", "create_script_module"),
    ("torch.jit._serialization", "load"),
)
