"""Every form of every op, in the order they are tried. A form is a function in the file of its kind and a line in that
file's table."""

from collections.abc import Mapping, Sequence

from hexane.ops import USER_OPS
from hexane.passes.retarget import decompose, move, pools, quantized, ranks, resize, tile, windows
from hexane.passes.retarget.writer import Form

# Their numbers are the host's: a stream gives the same ones wherever the rest runs.
HOSTS = frozenset(("random", "random_uniform", "random_normal", "bernoulli", "dropout", "multinomial"))
# Forms of the op itself come first. Tiling comes before expansion, which would give more pieces.
FORMS: Mapping[str, Sequence[Form]] = {
    name: (
        *windows.FORMS.get(name, ()),
        *pools.FORMS.get(name, ()),
        *decompose.FORMS.get(name, ()),
        *move.FORMS.get(name, ()),
        *resize.FORMS.get(name, ()),
        *quantized.FORMS.get(name, ()),
        *ranks.FORMS.get(name, ()),
        ranks.fold_axes,
        *tile.FORMS.get(name, ()),
        tile.tile,
        *decompose.FORMS_OF_WHOLE.get(name, ()),
        decompose.expand,
    )
    for name in sorted(USER_OPS.keys() - HOSTS)
}
