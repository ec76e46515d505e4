"""A language model on this CPU, next to transformers in torch, llama.cpp, onnxruntime and OpenVINO:
`python benchmarks/language_model.py [--torch PYTHON] [--llama-cpp PYTHON] [--onnxruntime PYTHON] [--openvino PYTHON]`,
Pythons that have torch with transformers, llama-cpp-python, onnxruntime, or openvino.

The model has the shape of SmolLM2-135M and seeded weights in bf16; --model takes another folder of Hugging Face. Only
Hexane and torch run another model. onnxruntime and OpenVINO run ONNX files of `onnx_decoder.py` in fp32.
onnxruntime has the op GroupQueryAttention, and updates the cache in place. For OpenVINO, attention is written out, and
the cache is its states. OpenVINO computes in bf16 by default on CPUs with bf16: there are rows for both. Each
contestant runs in a process of its own, in turns.

Columns:
  load      seconds to load the model
  prompt    milliseconds of a prompt, after a first one that compiles
  text      tokens a second of the text after the prompt
  memory    MB of the process at the end
  distance  relative L2 distance of the last logits from the logits of Hexane in fp32
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

SUPPORT = Path(__file__).parents[1] / "tests" / "support"
ROOM = 1024  # positions of the cache
INT8_PRODUCTS = "int8 products"
ONNX = {True: "fused", False: "plain"}  # files with and without GroupQueryAttention
Ids = list[int]


class Contestant(NamedTuple):
    name: str
    kind: str  # a key of RUN
    form: str  # an encoding, or a dtype, or a file


class Work(NamedTuple):
    """The tokens of the prompt and of the text after it."""

    prompt: Ids
    text: Ids


class Figures(NamedTuple):
    load: float
    prompt: float
    rate: float
    memory: int
    logits: list[float]


def write_models(folder: Path) -> None:
    """Writes the model as folders in bf16 and in fp32 with the same numbers, and as GGUF files."""
    import ml_dtypes
    from safetensors.numpy import load_file, save_file

    sys.path.append(str(SUPPORT))
    import onnx_decoder

    import gguf_writer
    import hexane as hx
    import tiny_llm
    from gguf_llm import sentence_pieces

    sizes: dict[str, Any] = {"vocab": 49152, "dim": 576, "hidden": 1536, "layers": 30, "heads": 9, "kv_heads": 3}
    tiny_llm.write(folder / "fp32", **sizes, seq=8192, tied=True)
    tiny_llm.write(folder / "bf16", **sizes, seq=8192, tied=True)
    weights = load_file(folder / "fp32" / "model.safetensors")
    # The deviation of an untrained network's weights, with which a product's output is about as large as its input.
    rng = np.random.default_rng(0)
    weights = {
        name: rng.normal(0, a.shape[-1] ** -0.5, a.shape) if a.ndim == 2 else np.ones(a.shape)
        for name, a in weights.items()
    }
    halves = {name: array.astype(ml_dtypes.bfloat16) for name, array in weights.items()}
    save_file(halves, folder / "bf16" / "model.safetensors")
    save_file({name: array.astype(np.float32) for name, array in halves.items()}, folder / "fp32" / "model.safetensors")
    config, arrays = hx.train.read_llama(folder / "fp32")
    for fused in (True, False):
        onnx_decoder.write(folder / f"{ONNX[fused]}.onnx", config, arrays, ROOM, fused=fused)
    words = sentence_pieces()
    key = "tokenizer.ggml."
    more = config.vocab - len(words[f"{key}tokens"])
    words[f"{key}tokens"] += [f"<{i}>" for i in range(more)]
    words[f"{key}token_type"] += [1] * more
    words[f"{key}scores"] += [-1000.0] * more
    for kind in ("F16", "Q8_0"):
        tensors = gguf_writer.tensors_of("llama", config, arrays, kind)
        gguf_writer.write(folder / f"{kind}.gguf", {**gguf_writer.metadata_of("llama", config), **words}, tensors)


def hexane(path: str, form: str, work: Work, threads: int) -> Figures:
    import hexane as hx

    begin = time.perf_counter()
    options = {"dtype": form} if form in ("fp32", "bf16") else {"compress": form.split()[0], "force": True}
    if form == INT8_PRODUCTS:
        options["dtype"] = "int8"
    model = hx.llm.load(path, context=ROOM, threads=threads, **options)
    loaded = time.perf_counter() - begin
    steps = model._steps

    def prompt(ids: Ids) -> object:
        steps.reset()
        return steps.prompt(ids)

    return _timed(loaded, prompt, steps.one, work)


def torch(path: str, form: str, work: Work, threads: int) -> Figures:
    import torch as peer
    from transformers import AutoModelForCausalLM, DynamicCache

    peer.set_num_threads(threads)
    begin = time.perf_counter()
    model = AutoModelForCausalLM.from_pretrained(path, dtype=getattr(peer, form)).eval()
    loaded = time.perf_counter() - begin
    cache: list[Any] = []

    @peer.inference_mode()
    def run(ids: Ids) -> object:
        out = model(peer.tensor([ids]), past_key_values=cache[0], use_cache=True, logits_to_keep=1)
        return out.logits[0, -1].float().numpy()

    def prompt(ids: Ids) -> object:
        cache[:] = [DynamicCache(config=model.config)]
        return run(ids)

    return _timed(loaded, prompt, lambda token, position: run([token]), work)


def llama_cpp(path: str, form: str, work: Work, threads: int) -> Figures:
    from llama_cpp import Llama

    begin = time.perf_counter()
    model = Llama(path, n_ctx=ROOM, n_batch=512, n_threads=threads, n_threads_batch=threads, verbose=False)
    loaded = time.perf_counter() - begin

    def run(ids: Ids) -> object:
        model.eval(ids)
        return np.ctypeslib.as_array(model._ctx.get_logits(), (model.n_vocab(),))

    def prompt(ids: Ids) -> object:
        model.reset()
        return run(ids)

    return _timed(loaded, prompt, lambda token, position: run([token]), work)


def onnxruntime(path: str, form: str, work: Work, threads: int) -> Figures:
    import onnxruntime as peer

    begin = time.perf_counter()
    options = peer.SessionOptions()
    options.intra_op_num_threads = threads
    session = peer.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    loaded = time.perf_counter() - begin
    binding = session.io_binding()
    for port in session.get_inputs():
        if port.name.startswith("past"):  # the present is written to the memory of the past
            cache = peer.OrtValue.ortvalue_from_numpy(np.zeros(port.shape, np.float32))
            binding.bind_ortvalue_input(port.name, cache)
            binding.bind_ortvalue_output(port.name.replace("past", "present"), cache)
    binding.bind_output("logits")

    def run(ids: Ids, position: int) -> object:
        total = position + len(ids)
        binding.bind_cpu_input("ids", np.array([ids], np.int64))
        binding.bind_cpu_input("seqlens", np.array([total - 1], np.int32))
        binding.bind_cpu_input("total", np.array([total], np.int32))
        session.run_with_iobinding(binding)
        return binding.get_outputs()[-1].numpy()[0]  # in the order of the bindings

    return _timed(loaded, lambda ids: run(ids, 0), lambda token, position: run([token], position), work)


def openvino(path: str, form: str, work: Work, threads: int) -> Figures:
    import openvino as peer
    from openvino._offline_transformations import apply_make_stateful_transformation

    begin = time.perf_counter()
    core = peer.Core()
    model = core.read_model(path)
    pasts = [port.get_any_name() for port in model.inputs if port.get_any_name().startswith("past")]
    apply_make_stateful_transformation(model, {name: name.replace("past", "present") for name in pasts})
    hint = {} if form == "default" else {"INFERENCE_PRECISION_HINT": form}
    request = core.compile_model(model, "CPU", {"INFERENCE_NUM_THREADS": threads, **hint}).create_infer_request()
    loaded = time.perf_counter() - begin

    def run(ids: Ids, position: int) -> object:
        places = np.arange(position, position + len(ids))
        return request.infer({"ids": np.array([ids], np.int64), "position": places})["logits"][0]

    def prompt(ids: Ids) -> object:
        request.reset_state()
        return run(ids, 0)

    return _timed(loaded, prompt, lambda token, position: run([token], position), work)


RUN = {"hexane": hexane, "torch": torch, "llama.cpp": llama_cpp, "onnxruntime": onnxruntime, "OpenVINO": openvino}


def _timed(loaded: float, prompt: Any, one: Any, work: Work) -> Figures:
    prompt(work.prompt)  # the first one compiles
    for at, token in enumerate(work.text[:2], len(work.prompt)):
        one(token, at)
    begin = time.perf_counter()
    prompt(work.prompt)
    prompted = time.perf_counter() - begin
    logits: object = None
    begin = time.perf_counter()
    for at, token in enumerate(work.text, len(work.prompt)):
        logits = one(token, at)
    rate = len(work.text) / (time.perf_counter() - begin)
    return Figures(loaded, prompted, rate, _memory(), [float(v) for v in np.asarray(logits)])


def _memory() -> int:
    """Returns the resident bytes of the process, or the largest so far where the system has no /proc."""
    status = Path("/proc/self/statm")
    if status.exists():
        return int(status.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _contestants(given: argparse.Namespace) -> Iterable[tuple[Contestant, str, str]]:
    """Yields contestants, each with its Python and its model."""
    folder = given.model
    wide, short = (folder / "fp32", folder / "bf16") if given.seeded else (folder, folder)
    yield Contestant("Hexane, fp32", "hexane", "fp32"), sys.executable, str(wide)
    if given.seeded:
        yield Contestant("Hexane, stored in bf16", "hexane", "fp32"), sys.executable, str(short)
    yield Contestant("Hexane, bf16", "hexane", "bf16"), sys.executable, str(short)
    for form in ("int8", INT8_PRODUCTS, "blockwise8:b32", "blockwise4:b32"):
        yield Contestant(f"Hexane, {form}", "hexane", form), sys.executable, str(wide)
    if given.torch:
        for form in ("float32", "bfloat16"):
            yield Contestant(f"torch, {form}", "torch", form), given.torch, str(wide)
    if given.llama_cpp:
        for kind in ("F16", "Q8_0"):
            yield Contestant(f"llama.cpp, {kind}", "llama.cpp", kind), given.llama_cpp, str(folder / f"{kind}.gguf")
    if given.onnxruntime:
        file = folder / f"{ONNX[True]}.onnx"
        yield Contestant("onnxruntime, fp32", "onnxruntime", "fp32"), given.onnxruntime, str(file)
    if given.openvino:
        for form in ("f32", "default"):
            file = folder / f"{ONNX[False]}.onnx"
            yield Contestant(f"OpenVINO, {form}", "OpenVINO", form), given.openvino, str(file)


def _measure(contestant: Contestant, python: str, path: str, given: argparse.Namespace) -> Figures | None:
    """Returns the figures of one run; None, with a message, for a contestant that fails."""
    asked = [contestant.kind, contestant.form, path, str(given.prompt), str(given.steps), str(given.threads)]
    done = subprocess.run([python, __file__, "--one", *asked], check=False, capture_output=True, text=True)
    if done.returncode:
        said = done.stderr.strip().splitlines() or ["it printed nothing"]
        print(f"{contestant.name}: ended with {done.returncode}: {said[-1]}", file=sys.stderr)
        return None
    return Figures(*json.loads(done.stdout.splitlines()[-1]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--torch", metavar="PYTHON", help="a Python that has torch and transformers")
    parser.add_argument(
        "--llama-cpp", metavar="PYTHON", help="a Python that has llama-cpp-python; the seeded model only"
    )
    parser.add_argument("--onnxruntime", metavar="PYTHON", help="a Python that has onnxruntime; the seeded model only")
    parser.add_argument("--openvino", metavar="PYTHON", help="a Python that has openvino; the seeded model only")
    parser.add_argument("--model", type=Path, help="a folder of Hugging Face; default: a seeded model")
    parser.add_argument("--prompt", type=int, default=200, help="tokens of the prompt")
    parser.add_argument("--steps", type=int, default=32, help="tokens of the text after it")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--one", nargs=6, help=argparse.SUPPRESS)  # kind, form, model, prompt, steps, threads
    given = parser.parse_args()
    if given.one:
        kind, form, path, prompt, steps, threads = given.one
        ids = [int(i) for i in np.random.default_rng(0).integers(300, 5000, int(prompt) + int(steps))]
        print(json.dumps(RUN[kind](path, form, Work(ids[: int(prompt)], ids[int(prompt) :]), int(threads))))
        return
    given.seeded = given.model is None
    for option in ("llama_cpp", "onnxruntime", "openvino"):
        if getattr(given, option) and not given.seeded:
            name = f"--{option.replace('_', '-')}"
            parser.error(f"{name}: got it with --model, need one of the two: it runs the seeded model only")
    with tempfile.TemporaryDirectory() as folder:
        if given.seeded:
            given.model = Path(folder)
            write_models(given.model)
        found: dict[str, list[Figures]] = {}
        for _ in range(given.rounds):
            for contestant, python, path in _contestants(given):
                if (measured := _measure(contestant, python, path, given)) is not None:
                    found.setdefault(contestant.name, []).append(measured)
    print(f"{'':26}{'load':>8}{'prompt':>10}{'text':>12}{'memory':>10}{'distance':>10}")
    print(f"{'':26}{'s':>8}{'ms':>10}{'tokens/s':>12}{'MB':>10}")
    want = np.array(found["Hexane, fp32"][0].logits)
    for name, rounds in found.items():
        load, prompt, rate, memory = (statistics.median(one[i] for one in rounds) for i in range(4))
        distance = float(np.linalg.norm(np.array(rounds[0].logits) - want) / np.linalg.norm(want))
        print(f"{name:26}{load:8.2f}{prompt * 1e3:10.0f}{rate:12.1f}{memory / 1e6:10.0f}{distance:10.1e}")


if __name__ == "__main__":
    main()
