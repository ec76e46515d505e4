"""The schema of TFLite files: the fields of each table, by number.

A field is `name:type=default`. A field's number is one more than the previous field's, or follows an @. A union has two
numbers: of its type, which names the table, and of its offset.
"""

from collections.abc import Mapping
from typing import NamedTuple


class Field(NamedTuple):
    """A field of a table. type: of a scalar, `string`, a table, `union`, or one of these in brackets for a vector."""

    name: str
    number: int
    type: str
    default: int


_TABLES = """
AddOptions fused_activation_function:int8 pot_scale_int16:bool=1
ArgMaxOptions output_type:int8
ArgMinOptions output_type:int8
BatchMatMulOptions adj_x:bool adj_y:bool asymmetric_quantize_inputs:bool
BidirectionalSequenceLSTMOptions fused_activation_function:int8 cell_clip:float32 proj_clip:float32 merge_outputs:bool
  time_major:bool=1 asymmetric_quantize_inputs:bool
BidirectionalSequenceRNNOptions time_major:bool fused_activation_function:int8 merge_outputs:bool
  asymmetric_quantize_inputs:bool
BlockwiseQuantization scales:int32 zero_points:int32 block_size:int32 block_shape:[int32]
BucketizeOptions boundaries:[float32]
Buffer data:[uint8] offset:uint64 size:uint64
CallOnceOptions init_subgraph_index:int32
CallOptions subgraph:uint32
CastOptions in_data_type:int8 out_data_type:int8
ConcatenationOptions axis:int32 fused_activation_function:int8
Conv2DOptions padding:int8 stride_w:int32 stride_h:int32 fused_activation_function:int8 dilation_wfactor:int32=1
  dilation_hfactor:int32=1 quantized_bias_type:int8
Conv3DOptions padding:int8 stride_d:int32 stride_w:int32 stride_h:int32 fused_activation_function:int8
  dilation_dfactor:int32=1 dilation_wfactor:int32=1 dilation_hfactor:int32=1
CumsumOptions exclusive:bool reverse:bool
DepthToSpaceOptions block_size:int32
DepthwiseConv2DOptions padding:int8 stride_w:int32 stride_h:int32 depth_multiplier:int32
  fused_activation_function:int8 dilation_wfactor:int32=1 dilation_hfactor:int32=1
DimensionMetadata format:int8 dense_size:int32 array_segments_type:uint8 array_segments:union array_indices_type:uint8
  array_indices:union
DivOptions fused_activation_function:int8
ExternalBuffer id:uint32 group:uint32 offset:uint64 packing@4:string
ExternalBufferGroup name:string
FakeQuantOptions min:float32 max:float32 num_bits:int32 narrow_range:bool
FullyConnectedOptions fused_activation_function:int8 weights_format:int8 keep_num_dims:bool
  asymmetric_quantize_inputs:bool quantized_bias_type:int8 quant_spec:[uint8]
GatherOptions axis:int32 batch_dims:int32
GeluOptions approximate:bool
IfOptions then_subgraph_index:int32 else_subgraph_index:int32
Int32Vector values:[int32]
L2NormOptions fused_activation_function:int8
LSTMOptions fused_activation_function:int8 cell_clip:float32 proj_clip:float32 kernel_type:int8
  asymmetric_quantize_inputs:bool
LeakyReluOptions alpha:float32
LocalResponseNormalizationOptions radius:int32 bias:float32 alpha:float32 beta:float32
Metadata name:string buffer:uint32
MirrorPadOptions mode:int8
Model version:uint32 operator_codes:[OperatorCode] subgraphs:[SubGraph] description:string buffers:[Buffer]
  metadata_buffer:[int32] metadata:[Metadata] signature_defs:[SignatureDef]
  external_buffer_groups:[ExternalBufferGroup] external_buffers:[ExternalBuffer]
MulOptions fused_activation_function:int8
MultiAxisQuantization scales:int32 zero_points:int32 block_size:int32 quantized_dimensions:[int32]
OneHotOptions axis:int32
Operator opcode_index:uint32 inputs:[int32] outputs:[int32] builtin_options_type:uint8 builtin_options:union
  custom_options:[uint8] custom_options_format:int8 mutating_variable_inputs:[bool] intermediates:[int32]
  large_custom_options_offset:uint64 large_custom_options_size:uint64 builtin_options2_type:uint8
  builtin_options2:union debug_metadata_index:int32=-1
OperatorCode deprecated_builtin_code:int8 custom_code:string version:int32=1 builtin_code:int32
PackOptions values_count:int32 axis:int32
Pool2DOptions padding:int8 stride_w:int32 stride_h:int32 filter_width:int32 filter_height:int32
  fused_activation_function:int8
QuantizationParameters min:[float32] max:[float32] scale:[float32] zero_point:[int64] details_type:uint8 details:union
  quantized_dimension:int32
RNNOptions fused_activation_function:int8 asymmetric_quantize_inputs:bool
ReducerOptions keep_dims:bool
ReshapeOptions new_shape:[int32]
ResizeBilinearOptions align_corners@2:bool half_pixel_centers:bool
ResizeNearestNeighborOptions align_corners:bool half_pixel_centers:bool
ReverseSequenceOptions seq_dim:int32 batch_dim:int32
SVDFOptions rank:int32 fused_activation_function:int8 asymmetric_quantize_inputs:bool
SequenceRNNOptions time_major:bool fused_activation_function:int8 asymmetric_quantize_inputs:bool
ShapeOptions out_type:int8
SignatureDef inputs:[TensorMap] outputs:[TensorMap] signature_key:string subgraph_index@4:uint32
SoftmaxOptions beta:float32
SpaceToDepthOptions block_size:int32
SparseToDenseOptions validate_indices:bool
SparsityParameters traversal_order:[int32] block_map:[int32] dim_metadata:[DimensionMetadata]
SplitOptions num_splits:int32
SplitVOptions num_splits:int32
SqueezeOptions squeeze_dims:[int32]
StableHLOCompositeOptions name:string decomposition_subgraph_index:int32 composite_attributes:[uint8]
  composite_attributes_format:int8 version:int32
StablehloBroadcastInDimOptions broadcast_dimensions:[int64]
StablehloCompareOptions comparison_direction:uint32 compare_type:uint32
StablehloConcatenateOptions dimension:int64
StablehloDotGeneralOptions lhs_batching_dimensions:[int64] rhs_batching_dimensions:[int64]
  lhs_contracting_dimensions:[int64] rhs_contracting_dimensions:[int64] precision_config:[uint32]
StablehloDynamicSliceOptions slice_sizes:[int64]
StablehloIotaOptions iota_dimension:int64
StablehloPadOptions edge_padding_low:[int64] edge_padding_high:[int64] interior_padding:[int64]
StablehloReduceOptions dimensions:[int64] body_subgraph_index:int32
StablehloSliceOptions start_indices:[int64] limit_indices:[int64] strides:[int64]
StablehloTransposeOptions permutation:[int64]
StablehloWhileOptions cond_subgraph_index:int32 body_subgraph_index:int32
StridedSliceOptions begin_mask:int32 end_mask:int32 ellipsis_mask:int32 new_axis_mask:int32 shrink_axis_mask:int32
  offset:bool
SubGraph tensors:[Tensor] inputs:[int32] outputs:[int32] operators:[Operator] name:string
  debug_metadata_index:int32=-1
SubOptions fused_activation_function:int8 pot_scale_int16:bool=1
Tensor shape:[int32] type:int8 buffer:uint32 name:string quantization:QuantizationParameters is_variable:bool
  sparsity:SparsityParameters shape_signature:[int32] has_rank:bool external_buffer:uint32
TensorMap name:string tensor_index:uint32
TransposeConvOptions padding:int8 stride_w:int32 stride_h:int32 fused_activation_function:int8
  quantized_bias_type:int8
Uint16Vector values:[uint16]
Uint8Vector values:[uint8]
UnidirectionalSequenceLSTMOptions fused_activation_function:int8 cell_clip:float32 proj_clip:float32 time_major:bool
  asymmetric_quantize_inputs:bool diagonal_recurrent_tensors:bool
UniqueOptions idx_out_type:int8=2
UnpackOptions num:int32 axis:int32
VarHandleOptions container:string shared_name:string
WhileOptions cond_subgraph_index:int32 body_subgraph_index:int32
"""

# The operators in the order of their codes, with their options table.
_OPERATORS = """
ADD:AddOptions AVERAGE_POOL_2D:Pool2DOptions CONCATENATION:ConcatenationOptions CONV_2D:Conv2DOptions
DEPTHWISE_CONV_2D:DepthwiseConv2DOptions DEPTH_TO_SPACE:DepthToSpaceOptions DEQUANTIZE:DequantizeOptions
EMBEDDING_LOOKUP FLOOR FULLY_CONNECTED:FullyConnectedOptions HASHTABLE_LOOKUP L2_NORMALIZATION:L2NormOptions
L2_POOL_2D:Pool2DOptions LOCAL_RESPONSE_NORMALIZATION:LocalResponseNormalizationOptions LOGISTIC
LSH_PROJECTION:LSHProjectionOptions LSTM:LSTMOptions MAX_POOL_2D:Pool2DOptions MUL:MulOptions RELU RELU_N1_TO_1 RELU6
RESHAPE:ReshapeOptions RESIZE_BILINEAR:ResizeBilinearOptions RNN:RNNOptions SOFTMAX:SoftmaxOptions
SPACE_TO_DEPTH:SpaceToDepthOptions SVDF:SVDFOptions TANH CONCAT_EMBEDDINGS:ConcatEmbeddingsOptions
SKIP_GRAM:SkipGramOptions CALL:CallOptions CUSTOM EMBEDDING_LOOKUP_SPARSE:EmbeddingLookupSparseOptions PAD:PadOptions
UNIDIRECTIONAL_SEQUENCE_RNN:SequenceRNNOptions GATHER:GatherOptions BATCH_TO_SPACE_ND:BatchToSpaceNDOptions
SPACE_TO_BATCH_ND:SpaceToBatchNDOptions TRANSPOSE:TransposeOptions MEAN:ReducerOptions SUB:SubOptions DIV:DivOptions
SQUEEZE:SqueezeOptions UNIDIRECTIONAL_SEQUENCE_LSTM:UnidirectionalSequenceLSTMOptions
STRIDED_SLICE:StridedSliceOptions BIDIRECTIONAL_SEQUENCE_RNN:BidirectionalSequenceRNNOptions EXP:ExpOptions
TOPK_V2:TopKV2Options SPLIT:SplitOptions LOG_SOFTMAX:LogSoftmaxOptions DELEGATE
BIDIRECTIONAL_SEQUENCE_LSTM:BidirectionalSequenceLSTMOptions CAST:CastOptions PRELU MAXIMUM:MaximumMinimumOptions
ARG_MAX:ArgMaxOptions MINIMUM:MaximumMinimumOptions LESS:LessOptions NEG:NegOptions PADV2:PadV2Options
GREATER:GreaterOptions GREATER_EQUAL:GreaterEqualOptions LESS_EQUAL:LessEqualOptions SELECT:SelectOptions
SLICE:SliceOptions SIN TRANSPOSE_CONV:TransposeConvOptions SPARSE_TO_DENSE:SparseToDenseOptions TILE:TileOptions
EXPAND_DIMS:ExpandDimsOptions EQUAL:EqualOptions NOT_EQUAL:NotEqualOptions LOG SUM:ReducerOptions SQRT RSQRT
SHAPE:ShapeOptions POW:PowOptions ARG_MIN:ArgMinOptions FAKE_QUANT:FakeQuantOptions REDUCE_PROD:ReducerOptions
REDUCE_MAX:ReducerOptions PACK:PackOptions LOGICAL_OR:LogicalOrOptions ONE_HOT:OneHotOptions
LOGICAL_AND:LogicalAndOptions LOGICAL_NOT:LogicalNotOptions UNPACK:UnpackOptions REDUCE_MIN:ReducerOptions
FLOOR_DIV:FloorDivOptions REDUCE_ANY:ReducerOptions SQUARE:SquareOptions ZEROS_LIKE:ZerosLikeOptions FILL:FillOptions
FLOOR_MOD:FloorModOptions RANGE:RangeOptions RESIZE_NEAREST_NEIGHBOR:ResizeNearestNeighborOptions
LEAKY_RELU:LeakyReluOptions SQUARED_DIFFERENCE:SquaredDifferenceOptions MIRROR_PAD:MirrorPadOptions ABS:AbsOptions
SPLIT_V:SplitVOptions UNIQUE:UniqueOptions CEIL REVERSE_V2:ReverseV2Options ADD_N:AddNOptions
GATHER_ND:GatherNdOptions COS:CosOptions WHERE:WhereOptions RANK:RankOptions ELU
REVERSE_SEQUENCE:ReverseSequenceOptions MATRIX_DIAG:MatrixDiagOptions QUANTIZE:QuantizeOptions
MATRIX_SET_DIAG:MatrixSetDiagOptions ROUND HARD_SWISH:HardSwishOptions IF:IfOptions WHILE:WhileOptions
NON_MAX_SUPPRESSION_V4:NonMaxSuppressionV4Options NON_MAX_SUPPRESSION_V5:NonMaxSuppressionV5Options
SCATTER_ND:ScatterNdOptions SELECT_V2:SelectV2Options DENSIFY:DensifyOptions SEGMENT_SUM:SegmentSumOptions
BATCH_MATMUL:BatchMatMulOptions PLACEHOLDER_FOR_GREATER_OP_CODES CUMSUM:CumsumOptions CALL_ONCE:CallOnceOptions
BROADCAST_TO:BroadcastToOptions RFFT2D:Rfft2dOptions CONV_3D:Conv3DOptions IMAG REAL COMPLEX_ABS
HASHTABLE:HashtableOptions HASHTABLE_FIND:HashtableFindOptions HASHTABLE_IMPORT:HashtableImportOptions
HASHTABLE_SIZE:HashtableSizeOptions REDUCE_ALL:ReducerOptions CONV_3D_TRANSPOSE:Conv3DOptions
VAR_HANDLE:VarHandleOptions READ_VARIABLE:ReadVariableOptions ASSIGN_VARIABLE:AssignVariableOptions BROADCAST_ARGS
RANDOM_STANDARD_NORMAL:RandomOptions BUCKETIZE:BucketizeOptions RANDOM_UNIFORM:RandomOptions MULTINOMIAL:RandomOptions
GELU:GeluOptions DYNAMIC_UPDATE_SLICE:DynamicUpdateSliceOptions RELU_0_TO_1
UNSORTED_SEGMENT_PROD:UnsortedSegmentProdOptions UNSORTED_SEGMENT_MAX:UnsortedSegmentMaxOptions
UNSORTED_SEGMENT_SUM:UnsortedSegmentSumOptions ATAN2:ATan2Options UNSORTED_SEGMENT_MIN:UnsortedSegmentMinOptions
SIGN:SignOptions BITCAST:BitcastOptions BITWISE_XOR:BitwiseXorOptions RIGHT_SHIFT:RightShiftOptions STABLEHLO_LOGISTIC
STABLEHLO_ADD STABLEHLO_DIVIDE STABLEHLO_MULTIPLY STABLEHLO_MAXIMUM STABLEHLO_RESHAPE STABLEHLO_CLAMP
STABLEHLO_CONCATENATE:StablehloConcatenateOptions STABLEHLO_BROADCAST_IN_DIM:StablehloBroadcastInDimOptions
STABLEHLO_CONVOLUTION:StablehloConvolutionOptions STABLEHLO_SLICE:StablehloSliceOptions
STABLEHLO_CUSTOM_CALL:StablehloCustomCallOptions STABLEHLO_REDUCE:StablehloReduceOptions STABLEHLO_ABS STABLEHLO_AND
STABLEHLO_COSINE STABLEHLO_EXPONENTIAL STABLEHLO_FLOOR STABLEHLO_LOG STABLEHLO_MINIMUM STABLEHLO_NEGATE STABLEHLO_OR
STABLEHLO_POWER STABLEHLO_REMAINDER STABLEHLO_RSQRT STABLEHLO_SELECT STABLEHLO_SUBTRACT STABLEHLO_TANH
STABLEHLO_SCATTER:StablehloScatterOptions STABLEHLO_COMPARE:StablehloCompareOptions STABLEHLO_CONVERT
STABLEHLO_DYNAMIC_SLICE:StablehloDynamicSliceOptions STABLEHLO_DYNAMIC_UPDATE_SLICE STABLEHLO_PAD:StablehloPadOptions
STABLEHLO_IOTA:StablehloIotaOptions STABLEHLO_DOT_GENERAL:StablehloDotGeneralOptions
STABLEHLO_REDUCE_WINDOW:StablehloReduceWindowOptions STABLEHLO_SORT:StablehloSortOptions
STABLEHLO_WHILE:StablehloWhileOptions STABLEHLO_GATHER:StablehloGatherOptions
STABLEHLO_TRANSPOSE:StablehloTransposeOptions DILATE:DilateOptions
STABLEHLO_RNG_BIT_GENERATOR:StablehloRngBitGeneratorOptions REDUCE_WINDOW:ReduceWindowOptions
STABLEHLO_COMPOSITE:StableHLOCompositeOptions STABLEHLO_SHIFT_LEFT:StablehloShiftLeftOptions STABLEHLO_CBRT
STABLEHLO_CASE:StablehloCaseOptions
"""

# The names of union types and tensor types, in the order of their numbers.
_OPTIONS = """
NONE Conv2DOptions DepthwiseConv2DOptions ConcatEmbeddingsOptions LSHProjectionOptions Pool2DOptions SVDFOptions
RNNOptions FullyConnectedOptions SoftmaxOptions ConcatenationOptions AddOptions L2NormOptions
LocalResponseNormalizationOptions LSTMOptions ResizeBilinearOptions CallOptions ReshapeOptions SkipGramOptions
SpaceToDepthOptions EmbeddingLookupSparseOptions MulOptions PadOptions GatherOptions BatchToSpaceNDOptions
SpaceToBatchNDOptions TransposeOptions ReducerOptions SubOptions DivOptions SqueezeOptions SequenceRNNOptions
StridedSliceOptions ExpOptions TopKV2Options SplitOptions LogSoftmaxOptions CastOptions DequantizeOptions
MaximumMinimumOptions ArgMaxOptions LessOptions NegOptions PadV2Options GreaterOptions GreaterEqualOptions
LessEqualOptions SelectOptions SliceOptions TransposeConvOptions SparseToDenseOptions TileOptions ExpandDimsOptions
EqualOptions NotEqualOptions ShapeOptions PowOptions ArgMinOptions FakeQuantOptions PackOptions LogicalOrOptions
OneHotOptions LogicalAndOptions LogicalNotOptions UnpackOptions FloorDivOptions SquareOptions ZerosLikeOptions
FillOptions BidirectionalSequenceLSTMOptions BidirectionalSequenceRNNOptions UnidirectionalSequenceLSTMOptions
FloorModOptions RangeOptions ResizeNearestNeighborOptions LeakyReluOptions SquaredDifferenceOptions MirrorPadOptions
AbsOptions SplitVOptions UniqueOptions ReverseV2Options AddNOptions GatherNdOptions CosOptions WhereOptions
RankOptions ReverseSequenceOptions MatrixDiagOptions QuantizeOptions MatrixSetDiagOptions HardSwishOptions IfOptions
WhileOptions DepthToSpaceOptions NonMaxSuppressionV4Options NonMaxSuppressionV5Options ScatterNdOptions
SelectV2Options DensifyOptions SegmentSumOptions BatchMatMulOptions CumsumOptions CallOnceOptions BroadcastToOptions
Rfft2dOptions Conv3DOptions HashtableOptions HashtableFindOptions HashtableImportOptions HashtableSizeOptions
VarHandleOptions ReadVariableOptions AssignVariableOptions RandomOptions BucketizeOptions GeluOptions
DynamicUpdateSliceOptions UnsortedSegmentProdOptions UnsortedSegmentMaxOptions UnsortedSegmentMinOptions
UnsortedSegmentSumOptions ATan2Options SignOptions BitcastOptions BitwiseXorOptions RightShiftOptions
"""

_OPTIONS_2 = """
NONE StablehloConcatenateOptions StablehloBroadcastInDimOptions StablehloSliceOptions StablehloConvolutionOptions
StablehloCustomCallOptions StablehloReduceOptions StablehloScatterOptions StablehloCompareOptions
StablehloDynamicSliceOptions StablehloPadOptions StablehloIotaOptions StablehloDotGeneralOptions
StablehloReduceWindowOptions StablehloSortOptions StablehloWhileOptions StablehloGatherOptions
StablehloTransposeOptions DilateOptions StablehloRngBitGeneratorOptions ReduceWindowOptions StableHLOCompositeOptions
StablehloShiftLeftOptions StablehloCaseOptions
"""

_TYPES = """
FLOAT32 FLOAT16 INT32 UINT8 INT64 STRING BOOL INT16 COMPLEX64 INT8 FLOAT64 COMPLEX128 UINT64 RESOURCE VARIANT UINT32
UINT16 INT4 BFLOAT16 INT2 UINT4 FLOAT8_E4M3FN FLOAT8_E5M2
"""


def _read_tables(text: str) -> dict[str, tuple[Field, ...]]:
    tables: dict[str, tuple[Field, ...]] = {}
    for line in text.replace("\n  ", " ").strip().splitlines():
        table, *words = line.split()
        fields: list[Field] = []
        for word in words:
            place, _, kind = word.partition(":")
            name, _, given = place.partition("@")
            kind, _, default = kind.partition("=")
            number = int(given) if given else fields[-1].number + 1 if fields else 0
            fields.append(Field(name, number, kind, int(default or 0)))
        tables[table] = tuple(fields)
    return tables


TABLES: Mapping[str, tuple[Field, ...]] = _read_tables(_TABLES)
OPERATORS: tuple[tuple[str, str], ...] = tuple(
    (name, options) for name, _, options in (word.partition(":") for word in _OPERATORS.split())
)
UNIONS: Mapping[str, tuple[str, ...]] = {
    "builtin_options": tuple(_OPTIONS.split()),
    "builtin_options2": tuple(_OPTIONS_2.split()),
    "details": ("NONE", "CustomQuantization", "BlockwiseQuantization", "MultiAxisQuantization"),
    "array_segments": ("NONE", "Int32Vector", "Uint16Vector", "Uint8Vector"),
    "array_indices": ("NONE", "Int32Vector", "Uint16Vector", "Uint8Vector"),
}
TYPES: tuple[str, ...] = tuple(_TYPES.split())
