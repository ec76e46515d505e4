"""The protobuf messages of Core ML's ML programs, pipelines, feature transforms and linear models: names and numbers of
Apple's `Model.proto`, `FeatureTypes.proto`, `MIL.proto`, `NonMaximumSuppression.proto`, `Scaler.proto` and similar
files. The source is the descriptors in coremltools 9.0.
`networks/schema.py` has the layers of older models.

A line is a message and its fields, NAME:TYPE=NUMBER. After a type, `*` repeats the field, and `?` makes it optional.
`{T}` is a map from strings to T. A field without a type is a string. Enums are declared as int32, and the code that
reads them knows their meaning.
"""

from functools import cache
from typing import Any

from hexane.importers.coreml.networks.schema import TABLE as NETWORKS

TABLE = """
Model specificationVersion:int32=1 description:ModelDescription=2 isUpdatable:bool=10 pipelineClassifier:Wrapped=200 pipelineRegressor:Wrapped=201 pipeline:Pipeline=202 neuralNetworkRegressor:NeuralNetwork=303 neuralNetworkClassifier:NeuralNetwork=403 neuralNetwork:NeuralNetwork=500 mlProgram:Program=502 nonMaximumSuppression:NonMaximumSuppression=610 glmRegressor:Glm=300 glmClassifier:Glm=400 oneHotEncoder:OneHotEncoder=600 imputer:Imputer=601 featureVectorizer:FeatureVectorizer=602 scaler:Scaler=604 normalizer:Normalizer=607 arrayFeatureExtractor:ArrayFeatureExtractor=609 identity:Empty=900
Wrapped pipeline:Pipeline=1
Pipeline models:Model*=1 names:string*=2
NonMaximumSuppression pickTop:PickTop=1 stringClassLabels:LabelTexts=100 int64ClassLabels:LabelNumbers=101 iouThreshold:double=110 confidenceThreshold:double=111 confidenceInputFeatureName=200 coordinatesInputFeatureName=201 iouThresholdInputFeatureName=202 confidenceThresholdInputFeatureName=203 confidenceOutputFeatureName=210 coordinatesOutputFeatureName=211
PickTop perClass:bool=1
Scaler shiftValue:double*=1 scaleValue:double*=2
Imputer imputedDoubleValue:double?=1 imputedInt64Value:int64?=2 imputedDoubleArray:Doubles64=4 imputedInt64Array:LabelNumbers=5 replaceDoubleValue:double?=11 replaceInt64Value:int64?=12
Doubles64 vector:double*=1
Normalizer normType:int32=1
OneHotEncoder stringCategories:LabelTexts=1 int64Categories:LabelNumbers=2 outputSparse:bool=10 handleUnknown:int32=11
FeatureVectorizer inputList:InputColumn*=1
InputColumn inputColumn=1 inputDimensions:uint64=2
ArrayFeatureExtractor extractIndex:uint64*=1
Glm weights:GlmRow*=1 offset:double*=2 postEvaluationTransform:int32=3 classEncoding:int32=4 stringClassLabels:LabelTexts=100 int64ClassLabels:LabelNumbers=101
GlmRow value:double*=1
LabelTexts vector:string*=1
LabelNumbers vector:int64*=1
ModelDescription input:FeatureDescription*=1 functions:FunctionDescription*=20 defaultFunctionName=21 output:FeatureDescription*=10 predictedFeatureName=11 predictedProbabilitiesName=12 state:FeatureDescription*=13 metadata:Metadata=100
FunctionDescription name=1 input:FeatureDescription*=2 output:FeatureDescription*=3 predictedFeatureName=4 predictedProbabilitiesName=5 state:FeatureDescription*=6
Metadata shortDescription=1 versionString=2 author=3 license=4 userDefined:{string}=100
FeatureDescription name=1 shortDescription=2 type:FeatureType=3
FeatureType int64Type:Empty=1 doubleType:Empty=2 stringType:Empty=3 imageType:ImageFeatureType=4 multiArrayType:ArrayFeatureType=5 dictionaryType:DictionaryFeatureType=6 sequenceType:Empty=7 stateType:StateFeatureType=8 isOptional:bool=1000
DictionaryFeatureType int64KeyType:Empty=1 stringKeyType:Empty=2
Empty
StateFeatureType arrayType:ArrayFeatureType=1
ImageFeatureType width:int64=1 height:int64=2 colorSpace:int32=3 enumeratedSizes:ImageSizes=21 imageSizeRange:ImageSizeRange=31
ImageSizes sizes:ImageSize*=1
ImageSize width:uint64=1 height:uint64=2
ImageSizeRange widthRange:SizeRange=1 heightRange:SizeRange=2
ArrayFeatureType shape:int64*=1 dataType:int32=2 enumeratedShapes:Shapes=21 shapeRange:ShapeRange=31 intDefaultValue:int32?=41 floatDefaultValue:float?=51 doubleDefaultValue:double?=61
Shapes shapes:Shape*=1
Shape shape:int64*=1
ShapeRange sizeRanges:SizeRange*=1
SizeRange lowerBound:uint64=1 upperBound:int64=2
Program version:int64=1 functions:{Function}=2
Function inputs:NamedValueType*=1 opset=2 block_specializations:{Block}=3
Block inputs:NamedValueType*=1 outputs:string*=2 operations:Operation*=3
Operation type=1 inputs:{Argument}=2 outputs:NamedValueType*=3 blocks:Block*=4 attributes:{Value}=5
Argument arguments:Binding*=1
Binding name:string?=1 value:Value=2
NamedValueType name=1 type:ValueType=2
ValueType tensorType:TensorType=1 listType:ListType=2 tupleType:TupleType=3 dictionaryType:DictionaryType=4 stateType:StateType=5
DictionaryType keyType:ValueType=1 valueType:ValueType=2
ListType type:ValueType=1 length:Dimension=2
TupleType types:ValueType*=1
StateType wrappedType:ValueType=1
TensorType dataType:int32=1 rank:int64=2 dimensions:Dimension*=3
Dimension constant:ConstantDimension=1 unknown:UnknownDimension=2
ConstantDimension size:uint64=1
UnknownDimension variadic:bool=1
Value docString=1 type:ValueType=2 immediateValue:ImmediateValue=3 blobFileValue:BlobFileValue=5
BlobFileValue fileName=1 offset:uint64=2
ImmediateValue tensor:TensorValue=1 tuple:TupleValue=2 list:ListValue=3
TupleValue values:Value*=1
ListValue values:Value*=1
TensorValue floats:Floats=1 ints:Ints=2 bools:Bools=3 strings:Strings=4 longInts:LongInts=5 doubles:Doubles=6 bytes:Bytes=7
Floats values:float*=1
Ints values:int32*=1
Bools values:bool*=1
Strings values:string*=1
LongInts values:int64*=1
Doubles values:double*=1
Bytes values:bytes=1
"""  # noqa: E501

PACKAGE = "hexane.coreml"


@cache
def messages() -> dict[str, Any]:
    """Returns the class of each message, in a descriptor pool of its own: coremltools may define the same messages in
    the same process."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory  # late: few models are Core ML's

    file = descriptor_pb2.FileDescriptorProto(name="hexane/coreml.proto", package=PACKAGE, syntax="proto3")
    scalars = {
        name: getattr(descriptor_pb2.FieldDescriptorProto, f"TYPE_{name.upper()}")
        for name in ("bool", "int32", "int64", "uint64", "float", "double", "string", "bytes")
    }
    for line in (TABLE + NETWORKS.lstrip()).strip().splitlines():
        name, *fields = line.split()
        message = file.message_type.add(name=name)
        for text in fields:
            _add_field(message, text, scalars)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {m.name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{PACKAGE}.{m.name}"))
            for m in file.message_type}  # fmt: skip


def _add_field(message: Any, text: str, scalars: dict[str, int]) -> None:
    head, _, number = text.partition("=")
    name, _, kind = head.partition(":")
    kind = kind or "string"
    field = message.field.add(name=name, number=int(number))
    field.label = field.LABEL_REPEATED if kind.endswith("*") or kind.startswith("{") else field.LABEL_OPTIONAL
    if kind.startswith("{"):
        entry = message.nested_type.add(name=f"{name[0].upper()}{name[1:]}Entry")
        if "_" in name:
            entry.name = "".join(part.capitalize() for part in name.split("_")) + "Entry"
        entry.options.map_entry = True
        _add_field(entry, "key=1", scalars)
        _add_field(entry, f"value:{kind[1:-1]}=2", scalars)
        field.type, field.type_name = field.TYPE_MESSAGE, f".{PACKAGE}.{message.name}.{entry.name}"
        return
    if kind.endswith("?"):
        field.proto3_optional = True
        field.oneof_index = len(message.oneof_decl)
        message.oneof_decl.add(name=f"_{name}")
    kind = kind.rstrip("*?")
    if kind in scalars:
        field.type = scalars[kind]
    else:
        field.type, field.type_name = field.TYPE_MESSAGE, f".{PACKAGE}.{kind}"
