"""Published task descriptors of M1: words of programs that ran, and the vendor's printout of one task.

PRINTED is tinygrad's extra/accel/ane/aneregs (the compiler's own debug print, version 7). The words are allbilly/ane's
(register notes and examples for a driver of M1). Offsets are in bytes from the first byte of a descriptor.
"""

from hexane.targets.descriptor_fields import descriptor_blocks, descriptor_bytes

# libane, td_v5.h (offsetof); tinygrad, the sections of README.old.
STREAMS = {
    "header": 0x0, "kernel": 0x2C, "common": 0x128, "source": 0x16C, "L2": 0x1E0, "planar": 0x22C,
    "multiply-accumulate": 0x240, "destination": 0x258,
}  # fmt: skip

CONV_3X3 = 0x5042A063  # the guide's "opcode word" of a convolution, chapter 23 and table of appendix C

_HEADER = {0x4: 0, 0x8: 0x422, 0xC: 0, 0x10: 0xFFF86A, 0x14: 0, 0x18: 0x30009800, 0x1C: 0}
_KERNEL = {0x2C: 0, 0x30: 0} | {0x34 + 4 * i: 0x80 for i in range(16)} | {0x74 + 4 * i: 0 for i in range(16)}
_SIZES = {0xB4 + 4 * i: 0x40 for i in range(16)}

# A relu of 1 x 1 x 1 x 77.
RELU = _HEADER | _KERNEL | _SIZES | {
    0x0: 0x02400000, 0x20: 0x01024025, 0x24: 0,
    0x128: 0x1004D, 0x12C: 1, 0x130: 0x22, 0x134: 1, 0x138: 1, 0x13C: 0x1004D, 0x140: 1, 0x144: 0x5000A021,
    0x148: 0x2041, 0x14C: 0x14001, 0x150: 1, 0x154: 0, 0x158: 0, 0x15C: 0x04010101, 0x160: 0x100000, 0x164: 0,
    0x16C: 0x33881, 0x170: 0x8880, 0x174: 0, 0x178: 0xC0, 0x17C: 0xC0, 0x180: 0xC0, 0x184: 0, 0x1A4: 0x01002031,
    0x1AC: 0x100, 0x1E0: 0, 0x1E4: 0x500172, 0x1E8: 0, 0x1EC: 0xA0, 0x1F0: 0xA0, 0x1F4: 0xA0, 0x1F8: 0xA0,
    0x210: 0x50017A, 0x214: 0xA0, 0x218: 0, 0x21C: 0, 0x22C: 0, 0x230: 0, 0x234: 0, 0x238: 0,
    0x240: 0x80, 0x244: 0x11000C, 0x248: 0, 0x24C: 0, 0x250: 0x3C00,
    0x258: 0x040000C1, 0x25C: 0, 0x260: 0xC0, 0x264: 0xC0, 0x268: 0xC0, 0x26C: 0, 0x270: 0x01302031,
}  # fmt: skip

# An addition of two tensors of 1 x 64 x 1 x 1; a multiplication differs by OpMode.
ADD = _HEADER | {
    0x0: 0x02000040, 0x24: 0,
    0x128: 0x10001, 0x12C: 1, 0x130: 0x2A, 0x134: 64, 0x138: 64, 0x13C: 0x10001, 0x140: 1, 0x144: 0x5000A021,
    0x148: 0x2041, 0x14C: 0x10001, 0x150: 1, 0x154: 4, 0x158: 0, 0x15C: 0x33, 0x160: 0, 0x164: 0,
    0x16C: 0x33881, 0x170: 0x33880, 0x178: 0x40, 0x17C: 0x40, 0x180: 0x1000, 0x18C: 0x40, 0x190: 0x40, 0x194: 0x1000,
    0x1A4: 0x01002031, 0x1A8: 0x2030, 0x1E4: 0x01500172, 0x1EC: 0x10, 0x1F0: 0x420, 0x1F4: 0x400, 0x1F8: 0x400,
    0x1FC: 0x440, 0x200: 0x10, 0x204: 0x420, 0x208: 0x400, 0x20C: 0x400, 0x210: 0x50017A, 0x214: 0x860,
    0x22C: 0x80000, 0x230: 0x3C000000, 0x234: 0x3C000000, 0x238: 0x3F800000,
    0x258: 0x040000C1, 0x260: 0x40, 0x264: 0x40, 0x268: 0x1000, 0x270: 0x01002031,
}  # fmt: skip
MULTIPLY_CFG = 0x80004  # at 0x22C

# A convolution of 3 to 3 channels, 1 x 1, over one pixel.
CONV = _HEADER | _KERNEL | _SIZES | {
    0x2C: 0x40, 0x34: 0x81, 0x38: 0x81, 0x3C: 0x81, 0x78: 0x40, 0x7C: 0x80,
    0xF4: 0x80, 0xF8: 0x80, 0xFC: 0x80, 0x100: 0x80, 0x24: 0x21,
    0x128: 0x10001, 0x12C: 1, 0x130: 0x22, 0x134: 3, 0x138: 3, 0x13C: 0x10001, 0x140: 1, 0x144: 0x5000A021,
    0x148: 0x2041, 0x14C: 0x10001, 0x150: 1, 0x15C: 0x04144405, 0x160: 0x100000,
    0x16C: 0x33881, 0x170: 0x8880, 0x178: 0x40, 0x17C: 0x40, 0x180: 0xC0, 0x1A4: 0x01002031, 0x1AC: 0x100,
    0x1E4: 0x500172, 0x1EC: 0x10, 0x1F0: 0x30, 0x1F4: 0x30, 0x1F8: 0x30, 0x210: 0x500172, 0x214: 0x30, 0x218: 0x10,
    0x21C: 0x30, 0x220: 0x30, 0x224: 0x30, 0x240: 0x82, 0x244: 0x101C00, 0x250: 0x3C00,
    0x258: 0xC1, 0x260: 0x40, 0x264: 0x40, 0x268: 0xC0, 0x270: 0x01302031,
}  # fmt: skip


def words_of(program: dict[int, int]) -> tuple[int, ...]:
    """A whole descriptor of it, with the words before its streams."""
    words = [0] * (descriptor_bytes(7) // 4)
    for block in descriptor_blocks(7):
        if block.header is not None:
            words[block.offset // 4 - 1] = block.header
    for offset, word in program.items():
        words[offset // 4] = word
    return tuple(words)


_TEXT = """
header Header0 TID 0 NID 0 LNID 1 EON 1
header Header1 ExeCycles 0 NextSize 0
header Header2 LogEvents 1058
header Header3 Exceptions 0
header Header4 DebugLogEvents 16775274
header Header5 DebugExceptions 0
header Header6 DisallowAbort 0 TDSkip 0 KPC 0 SPL 0 TSR 0 SPC 0 DPC 0 TSE 0 NextPriority 0 TDE 0 SrcLoc 1 DstLoc 1 TQDis 0
header Header7 NextPointer 0
header Header8 RBase0 5 RBE0 1 RBase1 0 RBE1 0 WBase 4 WBE 1 TBase 0 TBE 0 ENE 1
header Header9 KBase0 1 KBE0 1 KBase1 0 KBE1 0 KBase2 0 KBE2 0 KBase3 0 KBE3 0
kernel CoeffBaseAddr[1] Addr 0
kernel CoeffBfrSize[1] MemBfrSize 1
kernel CoeffDMAConfig[1] CacheHint 2 CrH 0 En 0 PrefetchParticipateEn 0
kernel CoeffBaseAddr[2] Addr 0
kernel CoeffBfrSize[2] MemBfrSize 1
kernel CoeffDMAConfig[2] CacheHint 2 CrH 0 En 0 PrefetchParticipateEn 0
common Cfg AccDoubleBufEn 1 ActiveNE 0 ContextSwitchIn 0 ContextSwitchOut 0 ShMax 1 ShMin 0 ShPref 1 SmallSourceMode 0
common ChCfg InFmt 2 OutFmt 2
common Cin Cin 1
common ConvCfg Kh 1 Kw 1 OCGSize 0 Ox 1 Oy 1 Px 0 Py 0 Sx 1 Sy 1
common Cout Cout 1
common DPE Category 0
common GroupConvCfg ElemMultMode 0 NumGroups 1 UnicastCin 1 UnicastEn 1
common InDim Hin 1 Win 77
common OutDim Hout 1 Wout 77
common TaskInfo NID 1 TaskID 0 TaskQ 0
common TileCfg TileHeight 1
source BaseAddr Addr 0
source DMAConfig CacheHint 2 CacheHintNoReuse 12 CacheHintReuse 14 CrH 0 DependencyMode 0 En 1
source Fmt CmpVec 0 FmtMode 1 Interleave 1 MemFmt 2 OffsetCh 0 Shift 0 Truncate 3
source DepthStride Stride 3
source GroupStride Stride 0
source PixelOffset[0] Offset 0
source PixelOffset[1] Offset 0
source PixelOffset[2] Offset 0
source PixelOffset[3] Offset 0
source PlaneStride PlaneStride 3
source RowStride Stride 3
L2 ResultBase Addr 10
L2 ResultCfg AliasConvRslt 0 AliasConvSrc 0 AliasPlanarRslt 0 AliasPlanarSrc 0 ResultType 2 DMACmpVec 0 DMAFmt 1
L2 ResultCfg DMAInterleave 1 DMAOffsetCh 0 L2BfrMode 1
L2 ConvResultChannelStride Stride 0
L2 ConvResultRowStride Stride 0
L2 L2Cfg InputReLU 0 PaddingMode 0
L2 SourceBase Addr 0
L2 SourceCfg AliasConvRslt 0 AliasConvSrc 0 AliasPlanarRslt 0 AliasPlanarSrc 0 DMACmpVec 0 DMAFmt 1 DMAInterleave 1
L2 SourceCfg DMAOffsetCh 0 Dependent 0 SourceType 2
L2 SourceChannelStride Stride 10
L2 SourceRowStride Stride 10
multiply-accumulate AccBias AccBias 0 AccBiasShift 0
multiply-accumulate KernelCfg GroupKernelReuse 0 KernelFmt 0 PalettizedBits 8 PalettizedEn 0 SparseFmt 0
multiply-accumulate MACCfg BiasMode 0 BinaryPoint 0 KernelMode 1 MatrixBiasEn 0 NonlinearMode 2 OpMode 4 PostScaleMode 0
multiply-accumulate MatrixVectorBias MatrixVectorBias 0
multiply-accumulate PostScale PostRightShift 0 PostScale 15360
destination BaseAddr Addr 0
destination DepthStride DepthStride 3
destination DMAConfig BypassEOW 0 CacheHint 3 CrH 0 En 1 L2BfrMode 1
destination Fmt CmpVec 0 CmpVecFill 0 FmtMode 1 Interleave 1 MemFmt 2 OffsetCh 0 Shift 0 Truncate 3 ZeroPadFirst 1
destination Fmt ZeroPadLast 1
destination GroupStride GroupStride 0
destination PlaneStride PlaneStride 3
destination RowStride RowStride 3
"""


def _printed() -> dict[str, int]:
    found = {}
    for line in _TEXT.strip().splitlines():
        block, register, *pairs = line.split()
        for name, value in zip(pairs[::2], pairs[1::2], strict=True):
            found[f"{block}.{register}.{name}"] = int(value)
    return found


# Its first engine alone reads a table, in the kernel's stream: only the next two stand here, which read nothing.
PRINTED = _printed()
