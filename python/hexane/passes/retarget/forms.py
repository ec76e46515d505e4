"""All rewrites ("forms") of all ops for a chip, in the order in which they are tried. A form is a function in the file
of its kind and an entry in that file's table."""

from collections.abc import Mapping, Sequence

from hexane.ops import USER_OPS
from hexane.passes.retarget import decompose, move, pools, quantized, ranks, resize, tile, tile_sums, windows
from hexane.passes.retarget.writer import Form

# The host computes random ops: a random stream must give the same numbers on every target.
HOSTS = frozenset(("random", "random_uniform", "random_normal", "bernoulli", "dropout", "multinomial"))
# Forms for single ops come first. Tiling comes before expansion, which would give more pieces.
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
        *tile_sums.FORMS.get(name, ()),
        *tile.FORMS.get(name, ()),
        tile.tile,
        *decompose.FORMS_OF_WHOLE.get(name, ()),
        decompose.expand,
    )
    for name in sorted(USER_OPS.keys() - HOSTS)
}
