// The used parts of Core ML, by Apple's developer documentation (developer.apple.com/documentation/coreml, each class
// on the page of its name). A number after a declaration is the first macOS that has it. Classes are looked up, and
// messages go through these protocols: nothing links to Core ML, and a missing method is an error at its first use.
#pragma once

#import <Foundation/Foundation.h>

inline constexpr char kCoreML[] = "/System/Library/Frameworks/CoreML.framework/CoreML";

// MLMultiArrayDataType
enum CoreMLDtype : NSInteger {
  kCoreMLDouble = 0x10000 | 64,
  kCoreMLFloat32 = 0x10000 | 32,
  kCoreMLFloat16 = 0x10000 | 16,  // 12
  kCoreMLInt32 = 0x20000 | 32,
  kCoreMLInt8 = 0x20000 | 8,  // 26
};

// MLFeatureType
enum CoreMLFeature : NSInteger {
  kCoreMLInt64Feature = 1,
  kCoreMLDoubleFeature = 2,
  kCoreMLStringFeature = 3,
  kCoreMLImageFeature = 4,
  kCoreMLArrayFeature = 5,
  kCoreMLStateFeature = 8,
};

@protocol CoreMLConfiguration  // MLModelConfiguration, 10.14
- (void)setComputeUnits:(NSInteger)units;
- (void)setFunctionName:(NSString*)name;  // 15
@end

@protocol CoreMLArray  // MLMultiArray, 10.13
- (id)initWithDataPointer:(void*)data
                    shape:(NSArray*)shape
                 dataType:(NSInteger)dtype
                  strides:(NSArray*)strides
              deallocator:(void (^)(void* bytes))deallocator
                    error:(NSError**)error;
- (id)initWithPixelBuffer:(void*)buffer shape:(NSArray*)shape;  // macOS 12
- (void*)pixelBuffer;                                           // Null without a pixel buffer (macOS 12).
- (NSArray*)shape;
- (NSArray*)strides;
- (NSInteger)dataType;
- (void*)dataPointer;
- (void)getBytesWithHandler:(void (^)(const void* bytes, NSInteger size))handler;                     // 12.3
- (void)getMutableBytesWithHandler:(void (^)(void* bytes, NSInteger size, NSArray* strides))handler;  // 12.3
@end

@protocol CoreMLValueClass  // MLFeatureValue, 10.13
- (id)featureValueWithMultiArray:(id)array;
@end
@protocol CoreMLValue
- (id)multiArrayValue;
@end

@protocol CoreMLFeatures  // MLFeatureProvider and MLDictionaryFeatureProvider, 10.13
- (id)initWithDictionary:(NSDictionary*)values error:(NSError**)error;
- (id)featureValueForName:(NSString*)name;
@end

@protocol CoreMLOptions                             // MLPredictionOptions, 10.13
- (void)setOutputBackings:(NSDictionary*)backings;  // 11
@end

@protocol CoreMLConstraint  // MLMultiArrayConstraint, 10.13, and MLStateConstraint, 15
- (NSArray*)shape;
- (NSInteger)dataType;
- (NSArray*)bufferShape;  // shape of a state
@end

@protocol CoreMLFeatureDescription  // MLFeatureDescription, 10.13
- (NSInteger)type;
- (BOOL)isOptional;
- (id)multiArrayConstraint;
- (id)stateConstraint;  // 15
@end

@protocol CoreMLDescription  // MLModelDescription, 10.13
- (NSDictionary*)inputDescriptionsByName;
- (NSDictionary*)outputDescriptionsByName;
- (NSDictionary*)stateDescriptionsByName;  // 15
@end

@protocol CoreMLModelClass  // MLModel, 10.13
- (NSURL*)compileModelAtURL:(NSURL*)package error:(NSError**)error;
- (id)modelWithContentsOfURL:(NSURL*)folder configuration:(id)configuration error:(NSError**)error;
@end
@protocol CoreMLModel
- (id)modelDescription;
- (id)predictionFromFeatures:(id)features options:(id)options error:(NSError**)error;
- (void)predictionFromFeatures:(id)features
                       options:(id)options
             completionHandler:(void (^)(id output, NSError* error))handler;                                // 14
- (id)newState;                                                                                             // 15
- (id)predictionFromFeatures:(id)features usingState:(id)state options:(id)options error:(NSError**)error;  // 15
@end

@protocol CoreMLState  // MLState, 15
- (void)getMultiArrayForStateNamed:(NSString*)name handler:(void (^)(id array))handler;
@end

@protocol CoreMLPlanClass  // MLComputePlan, 14.4
- (void)loadContentsOfURL:(NSURL*)folder
            configuration:(id)configuration
        completionHandler:(void (^)(id plan, NSError* error))handler;
@end
@protocol CoreMLPlan
- (id)modelStructure;
- (id)computeDeviceUsageForMLProgramOperation:(id)operation;
- (id)estimatedCostOfMLProgramOperation:(id)operation;
@end
@protocol CoreMLStructure  // MLModelStructure and its Program, Function, Block, Operation and NamedValueType, 14.4
- (id)program;
- (NSDictionary*)functions;
- (id)block;
- (NSArray*)operations;
- (NSArray*)blocks;
- (NSString*)operatorName;
- (NSArray*)outputs;
- (NSString*)name;
@end
@protocol CoreMLUsage  // MLComputePlanDeviceUsage and MLComputePlanCost, 14.4
- (id)preferredComputeDevice;
- (NSArray*)supportedComputeDevices;
- (double)weight;
@end

struct CoreMLSelector {
  const char* receiver;
  bool of_class;  // "+" in Objective-C
  const char* name;
  const char* since;  // the first macOS that has the method
};

inline constexpr CoreMLSelector kCoreMLSelectors[] = {
    {"MLModel", true, "compileModelAtURL:error:", "10.13"},
    {"MLModel", true, "modelWithContentsOfURL:configuration:error:", "10.14"},
    {"MLModel", false, "modelDescription", "10.13"},
    {"MLModel", false, "predictionFromFeatures:options:error:", "10.13"},
    {"MLModel", false, "predictionFromFeatures:options:completionHandler:", "14"},
    {"MLModel", false, "newState", "15"},
    {"MLModel", false, "predictionFromFeatures:usingState:options:error:", "15"},
    {"MLModelConfiguration", false, "setComputeUnits:", "10.14"},
    {"MLModelConfiguration", false, "setFunctionName:", "15"},
    {"MLMultiArray", false, "initWithDataPointer:shape:dataType:strides:deallocator:error:", "10.13"},
    {"MLMultiArray", false, "initWithPixelBuffer:shape:", "12"},
    {"MLMultiArray", false, "pixelBuffer", "12"},
    {"MLMultiArray", false, "getBytesWithHandler:", "12.3"},
    {"MLPredictionOptions", false, "setOutputBackings:", "11"},
    {"MLDictionaryFeatureProvider", false, "initWithDictionary:error:", "10.13"},
    {"MLFeatureValue", true, "featureValueWithMultiArray:", "10.13"},
    {"MLState", false, "getMultiArrayForStateNamed:handler:", "15"},
    {"MLComputePlan", true, "loadContentsOfURL:configuration:completionHandler:", "14.4"},
    {"MLComputePlan", false, "computeDeviceUsageForMLProgramOperation:", "14.4"},
    {"MLComputePlan", false, "estimatedCostOfMLProgramOperation:", "14.4"},
};

struct CoreMLDtypeName {
  NSInteger number;
  const char* name;
  size_t bytes;
};

inline constexpr CoreMLDtypeName kCoreMLDtypes[] = {
    {kCoreMLDouble, "fp64", 8}, {kCoreMLFloat32, "fp32", 4}, {kCoreMLFloat16, "fp16", 2},
    {kCoreMLInt32, "int32", 4}, {kCoreMLInt8, "int8", 1},
};

// MLComputeDeviceProtocol's classes, 14
struct CoreMLDeviceName {
  const char* class_name;
  const char* name;
};

inline constexpr CoreMLDeviceName kCoreMLDevices[] = {
    {"MLCPUComputeDevice", "cpu"}, {"MLGPUComputeDevice", "gpu"}, {"MLNeuralEngineComputeDevice", "ne"}};
