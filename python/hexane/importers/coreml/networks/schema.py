"""The protobuf messages of Core ML's neural networks (specification 1 to 5), in the table format of ML programs. The
names and numbers come from Apple's `NeuralNetwork.proto`, read from the descriptors of coremltools 9.0.

A layer's parameters are the one set field of NeuralNetworkLayer with a number of at least 100. A layer has the type
Empty here if it has no parameters, or if Hexane does not read them.
"""

TABLE = """
NeuralNetwork layers:NeuralNetworkLayer*=1 preprocessing:Preprocessing*=2 arrayInputShapeMapping:int32=5 imageInputShapeMapping:int32=6 stringClassLabels:Strings=100 int64ClassLabels:LongInts=101 labelProbabilityLayerName=200
Preprocessing featureName=1 scaler:ImageScaler=10 meanImage:Floats=11
ImageScaler channelScale:float=10 blueBias:float=20 greenBias:float=21 redBias:float=22 grayBias:float=30
NeuralNetworkLayer name=1 input:string*=2 output:string*=3 convolution:Convolution=100 pooling:Pooling=120 activation:ActivationParams=130 innerProduct:InnerProduct=140 embedding:Embedding=150 batchnorm:Batchnorm=160 mvn:MeanVarianceNormalize=165 l2normalize:L2Normalize=170 softmax:Empty=175 lrn:LRN=180 crop:Crop=190 padding:Padding=200 upsample:Upsample=210 resizeBilinear:ResizeBilinear=211 cropResize:CropResize=212 unary:UnaryFunction=220 add:Add=230 multiply:Multiply=231 average:Empty=240 scale:Scale=245 bias:Bias=250 max:Empty=260 min:Empty=261 dot:DotProduct=270 reduce:Reduce=280 loadConstant:LoadConstant=290 reshape:Reshape=300 flatten:Flatten=301 permute:Permute=310 concat:Concat=320 split:Split=330 sequenceRepeat:SequenceRepeat=340 reorganizeData:ReorganizeData=345 slice:Slice=350 simpleRecurrent:SimpleRecurrent=400 gru:GRU=410 uniDirectionalLSTM:UniDirectionalLSTM=420 biDirectionalLSTM:BiDirectionalLSTM=430 custom:Empty=500 copy:Empty=600 branch:Branch=605 loop:Loop=615 loopBreak:Empty=620 loopContinue:Empty=625 rangeStatic:RangeStatic=635 rangeDynamic:Empty=640 clip:Clip=660 ceil:Empty=665 floor:Empty=670 sign:Empty=680 round:Empty=685 exp2:Empty=700 sin:Empty=710 cos:Empty=715 tan:Empty=720 asin:Empty=730 acos:Empty=735 atan:Empty=740 sinh:Empty=750 cosh:Empty=755 tanh:Empty=760 asinh:Empty=770 acosh:Empty=775 atanh:Empty=780 erf:Empty=790 gelu:Gelu=795 equal:Equal=815 notEqual:NotEqual=820 lessThan:LessThan=825 lessEqual:LessEqual=827 greaterThan:GreaterThan=830 greaterEqual:GreaterEqual=832 logicalOr:Empty=840 logicalXor:Empty=845 logicalNot:Empty=850 logicalAnd:Empty=855 modBroadcastable:Empty=865 minBroadcastable:Empty=870 maxBroadcastable:Empty=875 addBroadcastable:Empty=880 powBroadcastable:Empty=885 divideBroadcastable:Empty=890 floorDivBroadcastable:Empty=895 multiplyBroadcastable:Empty=900 subtractBroadcastable:Empty=905 tile:Tile=920 stack:Stack=925 gather:Gather=930 scatter:Scatter=935 gatherND:Empty=940 scatterND:ScatterND=945 softmaxND:SoftmaxND=950 gatherAlongAxis:GatherAlongAxis=952 scatterAlongAxis:ScatterAlongAxis=954 reverse:Reverse=960 reverseSeq:ReverseSeq=965 splitND:SplitND=975 concatND:ConcatND=980 transpose:Transpose=985 sliceStatic:SliceStatic=995 sliceDynamic:Empty=1000 slidingWindows:SlidingWindows=1005 topK:TopK=1015 argMin:ArgMin=1020 argMax:ArgMax=1025 embeddingND:EmbeddingND=1040 batchedMatmul:BatchedMatMul=1045 getShape:Empty=1065 loadConstantND:LoadConstantND=1070 fillLike:FillLike=1080 fillStatic:FillStatic=1085 fillDynamic:Empty=1090 broadcastToLike:Empty=1100 broadcastToStatic:BroadcastToStatic=1105 broadcastToDynamic:Empty=1110 squeeze:Squeeze=1120 expandDims:ExpandDims=1125 flattenTo2D:FlattenTo2D=1130 reshapeLike:Empty=1135 reshapeStatic:ReshapeStatic=1140 reshapeDynamic:Empty=1145 rankPreservingReshape:RankPreservingReshape=1150 constantPad:ConstantPadding=1155 randomNormalLike:Empty=1170 randomNormalStatic:Empty=1175 randomNormalDynamic:Empty=1180 randomUniformLike:Empty=1190 randomUniformStatic:Empty=1195 randomUniformDynamic:Empty=1200 randomBernoulliLike:Empty=1210 randomBernoulliStatic:Empty=1215 randomBernoulliDynamic:Empty=1220 categoricalDistribution:Empty=1230 reduceL1:ReduceND=1250 reduceL2:ReduceND=1255 reduceMax:ReduceND=1260 reduceMin:ReduceND=1265 reduceSum:ReduceND=1270 reduceProd:ReduceND=1275 reduceMean:ReduceND=1280 reduceLogSum:ReduceND=1285 reduceSumSquare:ReduceND=1290 reduceLogSumExp:ReduceND=1295 whereNonZero:Empty=1313 matrixBandPart:MatrixBandPart=1315 lowerTriangular:LowerTriangular=1320 upperTriangular:UpperTriangular=1325 whereBroadcastable:Empty=1330 layerNormalization:LayerNormalization=1350 NonMaximumSuppression:BoxSuppression=1400 oneHot:OneHot=1450 cumSum:CumSum=1455 clampedReLU:ClampedReLU=1460 argSort:ArgSort=1461 pooling3d:Pooling3D=1465 globalPooling3d:GlobalPooling3D=1466 sliceBySize:Empty=1470 convolution3d:Convolution3D=1471
Convolution outputChannels:uint64=1 kernelChannels:uint64=2 nGroups:uint64=10 kernelSize:uint64*=20 stride:uint64*=30 dilationFactor:uint64*=40 valid:ValidPadding=50 same:SamePadding=51 isDeconvolution:bool=60 hasBias:bool=70 weights:WeightParams=90 bias:WeightParams=91 outputShape:uint64*=100
ValidPadding paddingAmounts:BorderAmounts=1
BorderAmounts borderAmounts:EdgeSizes*=10
EdgeSizes startEdgeSize:uint64=1 endEdgeSize:uint64=2
SamePadding asymmetryMode:int32=1
WeightParams floatValue:float*=1 float16Value:bytes=2 rawValue:bytes=30 int8RawValue:bytes=31 quantization:QuantizationParams=40
QuantizationParams numberOfBits:uint64=1 linearQuantization:LinearQuantization=101 lookupTableQuantization:LookUpTableQuantization=102
LinearQuantization scale:float*=1 bias:float*=2
LookUpTableQuantization floatValue:float*=1
Pooling type:int32=1 kernelSize:uint64*=10 stride:uint64*=20 valid:ValidPadding=30 same:SamePadding=31 includeLastPixel:ValidCompletePadding=32 avgPoolExcludePadding:bool=50 globalPooling:bool=60
ValidCompletePadding paddingAmounts:uint64*=10
ActivationParams linear:ActivationLinear=5 ReLU:Empty=10 leakyReLU:ActivationLeakyReLU=15 thresholdedReLU:ActivationThresholdedReLU=20 PReLU:ActivationPReLU=25 tanh:Empty=30 scaledTanh:ActivationScaledTanh=31 sigmoid:Empty=40 sigmoidHard:ActivationSigmoidHard=41 ELU:ActivationELU=50 softsign:Empty=60 softplus:Empty=70 parametricSoftplus:ActivationParametricSoftplus=71
ActivationLinear alpha:float=1 beta:float=2
ActivationLeakyReLU alpha:float=1
ActivationThresholdedReLU alpha:float=1
ActivationPReLU alpha:WeightParams=1
ActivationScaledTanh alpha:float=1 beta:float=2
ActivationSigmoidHard alpha:float=1 beta:float=2
ActivationELU alpha:float=1
ActivationParametricSoftplus alpha:WeightParams=1 beta:WeightParams=2
InnerProduct inputChannels:uint64=1 outputChannels:uint64=2 hasBias:bool=10 weights:WeightParams=20 bias:WeightParams=21 int8DynamicQuantize:bool=22
Embedding inputDim:uint64=1 outputChannels:uint64=2 hasBias:bool=10 weights:WeightParams=20 bias:WeightParams=21
Batchnorm channels:uint64=1 computeMeanVar:bool=5 instanceNormalization:bool=6 epsilon:float=10 gamma:WeightParams=15 beta:WeightParams=16 mean:WeightParams=17 variance:WeightParams=18
MeanVarianceNormalize acrossChannels:bool=1 normalizeVariance:bool=2 epsilon:float=3
L2Normalize epsilon:float=1
LRN alpha:float=1 beta:float=2 localSize:uint64=3 k:float=4
Crop cropAmounts:BorderAmounts=1 offset:uint64*=5
Padding constant:PaddingConstant=1 reflection:Empty=2 replication:Empty=3 paddingAmounts:BorderAmounts=10
PaddingConstant value:float=1
Upsample scalingFactor:uint64*=1 fractionalScalingFactor:float*=7 mode:int32=5 linearUpsampleMode:int32=6
ResizeBilinear targetSize:uint64*=1 mode:SamplingMode=2
SamplingMode samplingMethod:int32=1
UnaryFunction type:int32=1 alpha:float=2 epsilon:float=3 shift:float=4 scale:float=5
Add alpha:float=1
Multiply alpha:float=1
Scale shapeScale:uint64*=1 scale:WeightParams=2 hasBias:bool=3 shapeBias:uint64*=4 bias:WeightParams=5
Bias shape:uint64*=1 bias:WeightParams=2
DotProduct cosineSimilarity:bool=1
Reduce mode:int32=1 epsilon:float=2 axis:int32=3
LoadConstant shape:uint64*=1 data:WeightParams=2
Reshape targetShape:int64*=1 mode:int32=2
Flatten mode:int32=1
Permute axis:uint64*=1
Concat sequenceConcat:bool=100
Split nOutputs:uint64=1
SequenceRepeat nRepetitions:uint64=1
ReorganizeData mode:int32=1 blockSize:uint64=2
Slice startIndex:int64=1 endIndex:int64=2 stride:uint64=3 axis:int32=4
SimpleRecurrent inputVectorSize:uint64=1 outputVectorSize:uint64=2 activation:ActivationParams=10 sequenceOutput:bool=15 hasBiasVector:bool=20 weightMatrix:WeightParams=30 recursionMatrix:WeightParams=31 biasVector:WeightParams=32 reverseInput:bool=100
GRU inputVectorSize:uint64=1 outputVectorSize:uint64=2 activations:ActivationParams*=10 sequenceOutput:bool=15 hasBiasVectors:bool=20 updateGateWeightMatrix:WeightParams=30 resetGateWeightMatrix:WeightParams=31 outputGateWeightMatrix:WeightParams=32 updateGateRecursionMatrix:WeightParams=50 resetGateRecursionMatrix:WeightParams=51 outputGateRecursionMatrix:WeightParams=52 updateGateBiasVector:WeightParams=70 resetGateBiasVector:WeightParams=71 outputGateBiasVector:WeightParams=72 reverseInput:bool=100
UniDirectionalLSTM inputVectorSize:uint64=1 outputVectorSize:uint64=2 activations:ActivationParams*=10 params:LSTMParams=15 weightParams:LSTMWeightParams=20 reverseInput:bool=100
LSTMParams sequenceOutput:bool=10 hasBiasVectors:bool=20 forgetBias:bool=30 hasPeepholeVectors:bool=40 coupledInputAndForgetGate:bool=50 cellClipThreshold:float=60
LSTMWeightParams inputGateWeightMatrix:WeightParams=1 forgetGateWeightMatrix:WeightParams=2 blockInputWeightMatrix:WeightParams=3 outputGateWeightMatrix:WeightParams=4 inputGateRecursionMatrix:WeightParams=20 forgetGateRecursionMatrix:WeightParams=21 blockInputRecursionMatrix:WeightParams=22 outputGateRecursionMatrix:WeightParams=23 inputGateBiasVector:WeightParams=40 forgetGateBiasVector:WeightParams=41 blockInputBiasVector:WeightParams=42 outputGateBiasVector:WeightParams=43 inputGatePeepholeVector:WeightParams=60 forgetGatePeepholeVector:WeightParams=61 outputGatePeepholeVector:WeightParams=62
BiDirectionalLSTM inputVectorSize:uint64=1 outputVectorSize:uint64=2 activationsForwardLSTM:ActivationParams*=10 activationsBackwardLSTM:ActivationParams*=11 params:LSTMParams=15 weightParams:LSTMWeightParams*=20
RangeStatic endValue:float=1 startValue:float=2 stepSizeValue:float=3
Clip minVal:float=1 maxVal:float=2
Gelu mode:int32=1
Equal alpha:float=1
NotEqual alpha:float=1
LessThan alpha:float=2
LessEqual alpha:float=2
GreaterThan alpha:float=2
GreaterEqual alpha:float=2
Tile reps:uint64*=1
Stack axis:int64=1
Gather axis:int64=1
Scatter axis:int64=1 mode:int32=2
ScatterND mode:int32=1
SoftmaxND axis:int64=1
GatherAlongAxis axis:int64=1
ScatterAlongAxis axis:int64=1 mode:int32=2
Reverse reverseDim:bool*=1
ReverseSeq batchAxis:int64=1 sequenceAxis:int64=2
SplitND axis:int64=1 numSplits:uint64=2 splitSizes:uint64*=3
ConcatND axis:int64=1 interleave:bool=2
Transpose axes:uint64*=1
SliceStatic beginIds:int64*=1 beginMasks:bool*=2 endIds:int64*=3 endMasks:bool*=4 strides:int64*=5 squeezeMasks:bool*=6
SlidingWindows axis:int64=1 windowSize:uint64=2 step:uint64=3
TopK axis:int64=1 K:uint64=2 useBottomK:bool=3
ArgMin axis:int64=1 removeDim:bool=2
ArgMax axis:int64=1 removeDim:bool=2
EmbeddingND vocabSize:uint64=1 embeddingSize:uint64=2 hasBias:bool=3 weights:WeightParams=20 bias:WeightParams=21
BatchedMatMul transposeA:bool=1 transposeB:bool=2 weightMatrixFirstDimension:uint64=5 weightMatrixSecondDimension:uint64=6 hasBias:bool=7 weights:WeightParams=8 bias:WeightParams=9 int8DynamicQuantize:bool=10
LoadConstantND shape:uint64*=1 data:WeightParams=2
FillLike value:float=1
FillStatic value:float=1 targetShape:uint64*=2
BroadcastToStatic targetShape:uint64*=1
Squeeze axes:int64*=1 squeezeAll:bool=2
ExpandDims axes:int64*=1
FlattenTo2D axis:int64=1
ReshapeStatic targetShape:int64*=1
RankPreservingReshape targetShape:int64*=1
ConstantPadding value:float=1 padAmounts:uint64*=2 padToGivenOutputSizeMode:bool=3
MatrixBandPart numLower:int64=1 numUpper:int64=2
LowerTriangular k:int64=1
UpperTriangular k:int64=1
LayerNormalization normalizedShape:int64*=1 eps:float=2 gamma:WeightParams=3 beta:WeightParams=4
OneHot oneHotVectorSize:uint64=1 axis:int64=2 onValue:float=3 offValue:float=4
CumSum axis:int64=1 excludeFinalSum:bool=2 reverse:bool=3
ClampedReLU alpha:float=1 beta:float=2
ArgSort axis:int64=1 descending:bool=2
Pooling3D type:int32=1 kernelDepth:int32=2 kernelHeight:int32=3 kernelWidth:int32=4 strideDepth:int32=5 strideHeight:int32=6 strideWidth:int32=7 paddingType:int32=15 customPaddingFront:int32=8 customPaddingBack:int32=9 customPaddingTop:int32=10 customPaddingBottom:int32=11 customPaddingLeft:int32=12 customPaddingRight:int32=13 countExcludePadding:bool=14
GlobalPooling3D type:int32=1
Convolution3D outputChannels:int32=1 inputChannels:int32=2 nGroups:int32=10 kernelDepth:int32=20 kernelHeight:int32=21 kernelWidth:int32=22 strideDepth:int32=31 strideHeight:int32=32 strideWidth:int32=33 dilationDepth:int32=40 dilationHeight:int32=41 dilationWidth:int32=42 hasBias:bool=50 weights:WeightParams=60 bias:WeightParams=61 paddingType:int32=70 customPaddingFront:int32=80 customPaddingBack:int32=81 customPaddingTop:int32=82 customPaddingBottom:int32=83 customPaddingLeft:int32=84 customPaddingRight:int32=85 isDeconvolution:bool=86 outputShape:uint64*=87
ReduceND axes:int64*=1 keepDims:bool=2 reduceAll:bool=3
BoxSuppression iouThreshold:float=1 scoreThreshold:float=2 maxBoxes:uint64=3 perClassSuppression:bool=4
CropResize targetSize:uint64*=1 normalizedCoordinates:bool=2 mode:SamplingMode=3 boxIndicesMode:BoxCoordinatesMode=4 spatialScale:float=5
BoxCoordinatesMode boxMode:int32=1
Branch ifBranch:NeuralNetwork=1 elseBranch:NeuralNetwork=2
Loop maxLoopIterations:uint64=1 conditionVar=2 conditionNetwork:NeuralNetwork=3 bodyNetwork:NeuralNetwork=4
"""  # noqa: E501
