// The used parts of the private framework: its path, classes, selectors with their type encodings, and the keys of the
// attributes of a loaded model. Nothing links to the private framework: classes are looked up, and messages go through
// these protocols.
#pragma once

#import <Foundation/Foundation.h>

struct __IOSurface;

// A path in the shared cache of the dynamic linker, not in the file system.
inline constexpr char kFramework[] = "/System/Library/PrivateFrameworks/AppleNeuralEngine.framework/AppleNeuralEngine";

@protocol AneDescriptorClass
- (id)modelWithMILText:(NSData*)text weights:(NSDictionary*)weights optionsPlist:(NSData*)options;
@end

@protocol AneModelClass
- (id)inMemoryModelWithDescriptor:(id)descriptor;
@end

@protocol AneModel
- (NSString*)hexStringIdentifier;
- (bool)compiledModelExists;  // true if the service keeps a compiled program of this identifier, from any process
- (void)purgeCompiledModel;
- (bool)compileWithQoS:(unsigned int)qos options:(NSDictionary*)options error:(NSError**)error;
- (bool)loadWithQoS:(unsigned int)qos options:(NSDictionary*)options error:(NSError**)error;
- (NSDictionary*)modelAttributes;
- (bool)evaluateWithQoS:(unsigned int)qos options:(NSDictionary*)options request:(id)request error:(NSError**)error;
- (bool)unloadWithQoS:(unsigned int)qos error:(NSError**)error;
@end

@protocol AneSurfaceClass
- (id)objectWithIOSurface:(struct __IOSurface*)surface;
@end

@protocol AneRequestClass
- (id)requestWithInputs:(NSArray*)inputs
           inputIndices:(NSArray*)input_indices
                outputs:(NSArray*)outputs
          outputIndices:(NSArray*)output_indices
          weightsBuffer:(id)weights
              perfStats:(id)statistics
         procedureIndex:(NSNumber*)procedure;
@end

enum AneClass { kDescriptor, kModel, kSurface, kRequest, kNumClasses };

inline constexpr const char* kClassNames[kNumClasses] = {"_ANEInMemoryModelDescriptor", "_ANEInMemoryModel",
                                                         "_ANEIOSurfaceObject", "_ANERequest"};

struct AneSelector {
  AneClass receiver;
  bool of_class;  // "+" in Objective-C
  const char* name;
  const char* encoding;  // the type encoding that the runtime of an arm64 Mac prints
};

inline constexpr AneSelector kSelectors[] = {
    {kDescriptor, true, "modelWithMILText:weights:optionsPlist:", "@40@0:8@16@24@32"},
    {kModel, true, "inMemoryModelWithDescriptor:", "@24@0:8@16"},
    {kModel, false, "hexStringIdentifier", "@16@0:8"},
    {kModel, false, "compileWithQoS:options:error:", "B36@0:8I16@20^@28"},
    {kModel, false, "loadWithQoS:options:error:", "B36@0:8I16@20^@28"},
    {kModel, false, "modelAttributes", "@16@0:8"},
    {kModel, false, "evaluateWithQoS:options:request:error:", "B44@0:8I16@20@28^@36"},
    {kModel, false, "unloadWithQoS:error:", "B28@0:8I16^@20"},
    {kSurface, true, "objectWithIOSurface:", "@24@0:8^{__IOSurface=}16"},
    {kRequest, true, "requestWithInputs:inputIndices:outputs:outputIndices:weightsBuffer:perfStats:procedureIndex:",
     "@72@0:8@16@24@32@40@48@56@64"},
};

// A framework without these two selectors compiles each program anew.
inline constexpr AneSelector kKept[] = {
    {kModel, false, "compiledModelExists", "B16@0:8"},
    {kModel, false, "purgeCompiledModel", "v16@0:8"},
};

// modelAttributes is { NetworkStatusList: [{ LiveInputList: [{ Name: .., .. }], .. }], ANEFModelDescription: { .. } }.
inline NSString* const kNetworks = @"NetworkStatusList";
inline NSString* const kDescription = @"ANEFModelDescription";
inline NSString* const kProcedures = @"ANEFModelProcedures";
inline NSString* const kProcedureId = @"ANEFModelProcedureID";

// The keys of modelAttributes for one side of a program: inputs or outputs.
struct AneSide {
  NSString* live_list;       // Key in the network; its value has a dictionary for each port.
  NSString* symbols;         // Key in the description; its value has symbol names.
  NSString* symbol_indices;  // Key in the procedure; its value has indices into the symbol names.
};

inline const AneSide kInputSide = {@"LiveInputList", @"kANEFModelInputSymbolsArrayKey",
                                   @"ANEFModelInputSymbolIndexArray"};
inline const AneSide kOutputSide = {@"LiveOutputList", @"kANEFModelOutputSymbolsArrayKey",
                                    @"ANEFModelOutputSymbolIndexArray"};
inline NSString* const kOutputSuffix = @"@output";  // the suffix of output names

// The names of dtypes in a live list and in Hexane.
struct AneDtype {
  NSString* type;
  const char* name;
  int bytes;
};

inline const AneDtype kDtypes[] = {
    {@"Float16", "fp16", 2}, {@"Float32", "fp32", 4}, {@"Int8", "int8", 1},
    {@"UInt8", "uint8", 1},  {@"Int16", "int16", 2},  {@"UInt16", "uint16", 2},
};

// Class methods of _ANEDeviceInfo without arguments, which tell about the machine.
inline constexpr char kDeviceInfo[] = "_ANEDeviceInfo";
inline constexpr char kHasEngine[] = "hasANE";
inline constexpr const char* kDeviceFacts[] = {
    kHasEngine,     "numANEs",      "numANECores", "aneArchitectureType", "aneSubType",
    "aneBoardType", "buildVersion", "productName", "isVirtualMachine",
};
