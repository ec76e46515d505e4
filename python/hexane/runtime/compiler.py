"""Compiles one graph by the options of a caller."""

import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from hexane import _core
from hexane.compression import Compression
from hexane.emit.plan import emit_plan
from hexane.errors import Error, InputError
from hexane.graph import Graph
from hexane.graph.printer import size_text
from hexane.options import Options
from hexane.passes.legalize.narrow_ports import narrow_ports
from hexane.passes.run import Watch
from hexane.pipeline import compile_graph
from hexane.planning.search import slow_traffic
from hexane.program import Program
from hexane.runtime import engine
from hexane.runtime.auto_dtype import ChosenProducts, choose_products, in_fp32
from hexane.runtime.chip import chip_program
from hexane.runtime.collector import collector_paused
from hexane.runtime.compressed import Compressed, compressed
from hexane.runtime.dump import Dump
from hexane.runtime.model import Model
from hexane.runtime.on_engine import OnEngine, in_order
from hexane.targets import Chip, Target, load_target
from hexane.targets.detect import lookup_environment
from hexane.targets.dispatch import dispatch


@dataclass(frozen=True, slots=True)
class Compiler:
    options: Options
    target: Target
    planned: bool = True  # see `compile_graph`
    packed_only: bool = False  # see `build_with_shared_weights`

    @classmethod
    def of(cls, options: Options) -> "Compiler":
        """Raises Error for options that contradict each other or the target."""
        if options.placed.kind == "coreml":
            raise Error("[compile] device: got 'coreml', need 'auto', 'cpu' or 'ane' here; hx.compile takes 'coreml'")
        target = target_of(options)
        options.check_for(target)
        if options.placed.kind == "ane":
            found, missing = engine.find_engine(target.name)
            if found is None:
                raise Error(
                    f"[compile] device: got 'ane', need a Neural Engine: {missing}; 'cpu' runs the same program"
                )
        return cls(options, target)

    def build(
        self, model: Graph, pool: _core.MemoryPool | None = None, programs: "Sequence[_core.MadeProgram]" = ()
    ) -> Model:
        """Returns the compiled model. With a pool, all weights are in the pool and the model keeps no graph. programs:
        those already compiled for the graph."""
        asked = self.options.compression
        if asked is None:
            with collector_paused():
                return self._build(model, pool, programs)
        return self.compressed(model, asked, pool)[1]

    def compressed(
        self,
        model: Graph,
        asked: Compression,
        pool: _core.MemoryPool | None = None,
        *,
        measures: bool = False,
        surveys: bool = False,
    ) -> tuple[Compressed, Model]:
        """Returns the graph with compressed weights, and the compiled model. measures, surveys: see the function
        `compressed`."""

        def built(graph: Graph) -> Model:
            with collector_paused():
                return self._build(graph, pool)

        def trial(graph: Graph) -> Model:
            return replace(self, options=Options(threads=self.options.threads), target=load_target("host"))._build(
                graph, None
            )

        threads = self.options.num_threads
        return compressed(model, asked, self.target, built, trial, threads=threads, measures=measures, surveys=surveys)

    def _build(
        self, model: Graph, pool: _core.MemoryPool | None, programs: "Sequence[_core.MadeProgram]" = ()
    ) -> Model:
        chosen = self._chosen(model, is_fixed=pool is None)
        if chosen is not None:
            model = model.decided(*chosen.decisions)
        segment_compiler, why = self.engine()
        known = [] if segment_compiler is None else segment_compiler.made
        known += programs
        dump = self.options.dump
        watch = None if dump is None else Dump(dump)
        program = self.program(model, segment_compiler, watch, None if chosen is None else chosen.numbers)
        callbacks = in_order(known, program) if known else []
        if pool is not None:
            self._check_call(program)
        swaps = [(program.buffers[state].space, program.buffers[after].space) for state, after in program.swaps]
        core = _core.Program(
            emit_plan(program), self.options.num_threads, pool, callbacks, swaps, packed_only=self.packed_only
        )
        device = None if segment_compiler is None else segment_compiler.device
        core.limit_callers(self.options.num_contexts)
        memory = self.options.memory
        traffic = slow_traffic(program, memory) if memory.slow_bytes else None
        return Model(core, None if pool else program, why, device, traffic)

    def _check_call(self, program: Program) -> None:
        """Raises InputError if a call of a program for open shapes needs more memory than the user allows."""
        most = self.options.memory.call_bytes
        needed = sum(extent.bytes for name, extent in program.extents.items() if name != "weights")
        graph = program.graph
        needed += sum(value.type.bytes for value in (*graph.inputs, *(port.value for port in graph.outputs)))
        if most and needed > most:
            raise InputError(
                f"[call] got shapes whose call takes {size_text(needed)}, need at most the {size_text(most)} of"
                " hx.Memory(call=)"
            )

    def engine(self) -> tuple[OnEngine | None, str]:
        """Returns the compiler for the Neural Engine, or None and the reason why the program does not run on the
        engine."""
        device = self.options.placed
        if not isinstance(self.target, Chip) or device.kind == "cpu":
            return None, ""
        if asked := self.options.on_cpu:
            return None, f"got options that need the CPU: {' and '.join(asked)}"
        found, missing = engine.find_engine(self.target.name)
        if found is None:
            return None, missing
        qos = dispatch().default_qos if device.qos is None else device.qos
        return OnEngine(found, self.target, qos, device.cache), ""

    def _chosen(self, model: Graph, *, is_fixed: bool) -> ChosenProducts | None:
        """Returns the products in bf16 if the dtype is "auto"; None for other dtypes."""
        asked = self.options.auto_dtype
        if asked is None:
            return None
        if self.options.memory.runs_on != "host":
            return in_fp32("the runtime for small devices has no bf16")
        whole = replace(self, planned=False)

        def trial(numbers: Collection[int], watch: Watch | None = None) -> Model:
            program = whole.program(model, None, watch, numbers)
            swaps = [(program.buffers[state].space, program.buffers[after].space) for state, after in program.swaps]
            return Model(_core.Program(emit_plan(program), self.options.num_threads, None, [], swaps), program)

        return choose_products(model, asked, trial, is_fixed=is_fixed)

    def program(
        self,
        model: Graph,
        segment_compiler: OnEngine | None = None,
        watch: Watch | None = None,
        in_bf16: Collection[int] | None = None,
    ) -> Program:
        if isinstance(self.target, Chip):
            return chip_program(model, self.target, self.options, watch=watch, segment_compiler=segment_compiler)
        graph = narrow_ports(model, self.target) if self.options.io == "fp16" else model
        return compile_graph(graph, self.target, self.options, watch=watch, planned=self.planned, in_bf16=in_bf16)


def target_of(options: Options) -> Target:
    """Returns the target of these options on this machine."""
    by_environment = os.environ.get("HEXANE_TARGET", "")
    own = "" if options.placed.kind == "cpu" else engine.own_chip()
    if options.target is not None and options.target != "":
        return load_target(options.target)
    return load_target(lookup_environment(by_environment).written if by_environment else own or "host")
