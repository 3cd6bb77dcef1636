"""The messages of an ONNX file, as far as headers need them (onnx.proto; a test compares).

Texts for people and the values of attributes are checked and dropped; payloads are noted by place.
"""

from __future__ import annotations

from .protobuf_fields import declare

_MESSAGES = declare(
    r"""
    Model ir_version=1:int64 producer_name=2:text producer_version=3:text domain=4:text- \
        model_version=5:int64 doc_string=6:text- graph=7:Graph opset_import=8:OperatorSetId* \
        metadata_props=14:Property* training_info=20:TrainingInfo* functions=25:Function* \
        configuration=26:DeviceConfiguration*-
    OperatorSetId domain=1:text version=2:int64
    Property key=1:text value=2:bytes
    StringStringEntry! key=1:text value=2:text
    TrainingInfo initialization=1:Graph algorithm=2:Graph \
        initialization_binding=3:StringStringEntry*- update_binding=4:StringStringEntry*-
    Function name=1:text input=4:text* output=5:text* attribute=6:text*- node=7:Node* \
        doc_string=8:text- opset_import=9:OperatorSetId* domain=10:text \
        attribute_proto=11:Attribute* value_info=12:ValueInfo*- overload=13:text \
        metadata_props=14:StringStringEntry*-
    Graph node=1:Node* name=2:text initializer=5:Tensor* doc_string=10:text- input=11:ValueInfo* \
        output=12:ValueInfo* value_info=13:ValueInfo* \
        quantization_annotation=14:TensorAnnotation*- sparse_initializer=15:SparseTensor* \
        metadata_props=16:StringStringEntry*-
    TensorAnnotation tensor_name=1:text- \
        quant_parameter_tensor_names=2:StringStringEntry*-
    Node input=1:text* output=2:text* name=3:text op_type=4:text attribute=5:Attribute* \
        doc_string=6:text- domain=7:text overload=8:text metadata_props=9:StringStringEntry*- \
        device_configurations=10:NodeDeviceConfiguration*-
    Attribute! name=1:text f=2:float- i=3:int64- s=4:bytes- t=5:Tensor g=6:Graph floats=7:float*- \
        ints=8:int64*- strings=9:bytes*- tensors=10:Tensor* graphs=11:Graph* doc_string=13:text- \
        tp=14:Type- type_protos=15:Type*- type=20:enum- ref_attr_name=21:text- \
        sparse_tensor=22:SparseTensor sparse_tensors=23:SparseTensor*
    Tensor dims=1:int64* data_type=2:int32 segment=3:Segment float_data=4:float# \
        int32_data=5:int32# string_data=6:bytes# int64_data=7:int64# name=8:text raw_data=9:bytes \
        double_data=10:double# uint64_data=11:uint64# doc_string=12:text- \
        external_data=13:StringStringEntry* data_location=14:enum \
        metadata_props=16:StringStringEntry*-
    Segment begin=1:int64- end=2:int64-
    SparseTensor values=1:Tensor indices=2:Tensor dims=3:int64*
    ValueInfo name=1:text type=2:Type doc_string=3:text- metadata_props=4:StringStringEntry*-
    Type! |tensor_type=1:TensorType |sequence_type=4:Sequence |map_type=5:Map denotation=6:text- \
        |opaque_type=7:Opaque |sparse_tensor_type=8:TensorType |optional_type=9:Optional
    TensorType! elem_type=1:int32 shape=2:TensorShape
    Sequence! elem_type=1:Type
    Map! key_type=1:int32 value_type=2:Type
    Optional! elem_type=1:Type
    Opaque! domain=1:text- name=2:text-
    TensorShape! dim=1:Dimension*
    Dimension! |dim_value=1:int64 |dim_param=2:text denotation=3:text-
    DeviceConfiguration name=1:text- num_devices=2:int32- device=3:text*-
    NodeDeviceConfiguration configuration_id=1:text- sharding_spec=2:ShardingSpec*- \
        pipeline_stage=3:int32-
    ShardingSpec tensor_name=1:text- device=2:int64*- \
        index_to_device_group_map=3:IntIntListEntry*- sharded_dim=4:ShardedDim*-
    IntIntListEntry key=1:int64- value=2:int64*-
    ShardedDim axis=1:int64- simple_sharding=2:SimpleShardedDim*-
    SimpleShardedDim |dim_value=1:int64- |dim_param=2:text- num_shards=3:int64-
    """
)
MODEL = _MESSAGES["Model"]
MESSAGES = _MESSAGES
"""All of them by name, which is protobuf's without `Proto`."""
