"""The feature gates of kubelet v1.36: stage, default, whether locked, and which gate needs which.

Alpha and beta gates are those `--feature-gates` offers; the finished and the deprecated ones are still
accepted in old configurations.
"""

from __future__ import annotations

from typing import Final

# (stage, default, locked to the default) -> names
GATES: Final[dict[tuple[str, bool, bool], str]] = {
    ("ALPHA", False, False): """
    APIServingWithRoutine AllowUnsafeMalformedObjectDeletion CBORServingAndStorage
    CPUManagerPolicyAlphaOptions CRIListStreaming CSIVolumeHealth ClientsAllowCBOR ClientsPreferCBOR
    CloudControllerManagerWatchBasedRoutesReconciliation CloudControllerManagerWebhook
    ContainerStopSignals ControllerManagerReleaseLeaderElectionLockOnExit CrossNamespaceVolumeDataSource
    DRAListTypeAttributes DRANodeAllocatableResources DRAResourcePoolStatus DRAWorkloadResourceClaims
    EventedPLEG GangScheduling GenericWorkload HPAScaleToZero ImageVolumeWithDigest
    InPlacePodVerticalScalingExclusiveCPUs InPlacePodVerticalScalingExclusiveMemory
    KubeletInUserNamespace LoggingAlphaOptions ManifestBasedAdmissionControlConfig MemoryQoS
    MinimumKubeletVersion MutablePVNodeAffinity NativeHistograms PersistentVolumeClaimUnusedSinceTime
    PodAndContainerStatsFromCRI PodLevelResourceManagers PodLogsQuerySplitStreams PodsAPI QOSReserved
    ReduceDefaultCrashLoopBackOffDecay RouteExternalCertificate RuntimeClassInImageCriApi
    ShardedListAndWatch StorageCapacityScoring StoragePerformantSecurityPolicy StorageVersionAPI
    TaintTolerationComparisonOperators TopologyAwareWorkloadScheduling TopologyManagerPolicyAlphaOptions
    UserNamespacesHostNetworkSupport VolumeLimitScaling WindowsCPUAndMemoryAffinity
    WorkloadAwarePreemption WorkloadWithJob
    """,
    ("BETA", True, False): """
    APIResponseCompression APIServerIdentity AllowParsingUserUIDFromCertAuth AtomicFIFO
    AuthorizePodWebsocketUpgradeCreatePermission CPUManagerPolicyBetaOptions
    CRDObservedGenerationTracking ClearingNominatedNodeNameAfterBinding ClientsAllowCARotation
    ClientsAllowTLSCacheGC ComponentFlagz ComponentStatusz ConstrainedImpersonation ContainerCheckpoint
    ContainerRestartRules ContextualLogging DRAConsumableCapacity DRADeviceBindingConditions
    DRADeviceTaints DRAExtendedResource DRAPartitionableDevices DRAResourceClaimDeviceStatus
    DRAResourceClaimGranularStatusAuthorization DRASchedulerFilterTimeout DeclarativeValidationBeta
    DeploymentReplicaSetTerminatingReplicas DetectCacheInconsistency EnvFiles ExtendWebSocketsToKubelet
    GracefulNodeShutdown GracefulNodeShutdownBasedOnPodPriority HPAConfigurableTolerance
    HostnameOverride InOrderInformersBatchProcess InPlacePodLevelResourcesVerticalScaling
    InPlacePodVerticalScalingInitContainers KubeletCrashLoopBackOffMax KubeletEnsureSecretPulledImages
    KubeletSeparateDiskGC KubeletServiceAccountTokenForCredentialProviders ListFromCacheSnapshot
    LoggingBetaOptions MatchLabelKeysInPodTopologySpread MatchLabelKeysInPodTopologySpreadSelectorMerge
    MutablePodResourcesForSuspendedJobs MutableSchedulingDirectivesForSuspendedJobs NodeDeclaredFeatures
    NominatedNodeNameForExpectation OpenAPIEnums OpportunisticBatching PLEGOnDemandRelist
    PodDeletionCost PodLevelResources PodReadyToStartContainersCondition PodTopologyLabelsAdmission
    PortForwardWebsockets PreventStaticPodAPIReferences RelaxedServiceNameValidation
    ReloadKubeletClientCAFile ReloadKubeletServerCertificateFile RemoteRequestHeaderUID
    ResourceHealthStatus ResourceHealthStatusMessage RestartAllContainersOnContainerExits
    RotateKubeletServerCertificate SchedulerAsyncPreemption SchedulerPopFromBackoffQ
    ServiceAccountNodeAudienceRestriction SizeBasedListCostEstimate StaleControllerConsistencyDaemonSet
    StaleControllerConsistencyJob StaleControllerConsistencyReplicaSet
    StaleControllerConsistencyStatefulSet StatefulSetSemanticRevisionComparison StorageVersionHash
    StrictIPCIDRValidation StructuredAuthenticationConfigurationEgressSelector
    StructuredAuthenticationConfigurationJWKSMetrics TokenRequestServiceAccountUIDValidation
    TopologyManagerPolicyBetaOptions TranslateStreamCloseWebsocketRequests
    UnauthenticatedHTTP2DOSMitigation UnknownVersionInteroperabilityProxy UnlockWhileProcessingFIFO
    WatchCacheInitializationPostStartHook WatchList WatchListClient WindowsGracefulNodeShutdown
    """,
    ("BETA", False, False): """
    ClusterTrustBundle ClusterTrustBundleProjection ConcurrentWatchObjectDecode
    CoordinatedLeaderElection DRADeviceTaintRules LocalStorageCapacityIsolationFSQuotaMonitoring
    MaxUnavailableStatefulSet PodCertificateRequest SELinuxMount SchedulerAsyncAPICalls
    StorageVersionMigrator
    """,
    ("GA", True, True): """
    APIServerTracing AnonymousAuthConfigurableEndpoints AnyVolumeDataSource AuthorizeNodeWithSelectors
    AuthorizeWithSelectors BtreeWatchCache CPUManagerPolicyOptions CRDValidationRatcheting
    CSIServiceAccountTokenSecrets ConsistentListFromCache CustomResourceFieldSelectors DRAAdminAccess
    DeclarativeValidation DisableAllocatorDualWrite DynamicResourceAllocation ExecProbeTimeout
    ExternalServiceAccountTokenSigner ImageMaximumGCAge ImageVolume InOrderInformers
    InPlacePodVerticalScaling JobBackoffLimitPerIndex JobManagedBy JobPodReplacementPolicy
    JobSuccessPolicy KubeletCgroupDriverFromCRI KubeletFineGrainedAuthz KubeletPSI
    KubeletPodResourcesDynamicResources KubeletPodResourcesGet KubeletTracing LogarithmicScaleDown
    MatchLabelKeysInPodAffinity MultiCIDRServiceAllocator MutableCSINodeAllocatableCount
    NFTablesProxyMode NodeInclusionPolicyInPodTopologySpread NodeLogQuery NodeSwap
    OrderedNamespaceDeletion PodLifecycleSleepAction PodLifecycleSleepActionAllowZero
    PodObservedGenerationTracking PodSchedulingReadiness PreferSameTrafficDistribution ProcMountType
    RecoverVolumeExpansionFailure RecursiveReadOnlyMounts RelaxedDNSSearchValidation
    RelaxedEnvironmentVariableValidation ResilientWatchCacheInitialization RetryGenerateName
    SELinuxChangePolicy SELinuxMountReadWriteOncePod SchedulerQueueingHints
    SeparateTaintEvictionController ServiceAccountTokenJTI ServiceAccountTokenNodeBinding
    ServiceAccountTokenNodeBindingValidation ServiceAccountTokenPodNodeInfo SidecarContainers
    StreamingCollectionEncodingToJSON StreamingCollectionEncodingToProtobuf
    StructuredAuthenticationConfiguration SupplementalGroupsPolicy SystemdWatchdog
    TopologyManagerPolicyOptions UserNamespacesSupport VolumeAttributesClass WinDSR WinOverlay
    """,
    ("GA", True, False): """
    AllowServiceExternalIPs CustomCPUCFSQuotaPeriod DRAPrioritizedList InformerResourceVersion
    MutatingAdmissionPolicy
    """,
    ("DEPRECATED", True, True): """
    AggregatedDiscoveryRemoveBetaType DisableNodeKubeProxyVersion
    """,
    ("DEPRECATED", False, True): """
    AllowOverwriteTerminationGracePeriodSeconds GitRepoVolumeDriver SeparateCacheWatchRPC
    """,
    ("DEPRECATED", True, False): """
    DisableCPUQuotaWithExclusiveCPUs KubeletPodResourcesListUseActivePods ServiceCIDRStatusFieldWiping
    StorageNamespaceIndex
    """,
    ("DEPRECATED", False, False): """
    AllowDNSOnlyNodeCSR AllowInsecureKubeletCertificateSigningRequests
    ChangeContainerStatusOnKubeletRestart DeclarativeValidationTakeover KMSv1
    KubeletRegistrationGetOnExistsOnly WindowsHostNetwork
    """,
}

# An enabled gate needs these enabled too.
NEEDS: Final[dict[str, str]] = {
    "AuthorizeNodeWithSelectors": "AuthorizeWithSelectors",
    "ClusterTrustBundleProjection": "ClusterTrustBundle",
    "DRAAdminAccess": "DynamicResourceAllocation",
    "DRAConsumableCapacity": "DynamicResourceAllocation",
    "DRADeviceBindingConditions": "DynamicResourceAllocation DRAResourceClaimDeviceStatus",
    "DRADeviceTaintRules": "DRADeviceTaints",
    "DRADeviceTaints": "DynamicResourceAllocation",
    "DRAExtendedResource": "DynamicResourceAllocation",
    "DRAListTypeAttributes": "DynamicResourceAllocation",
    "DRANodeAllocatableResources": "DynamicResourceAllocation",
    "DRAPartitionableDevices": "DynamicResourceAllocation",
    "DRAPrioritizedList": "DynamicResourceAllocation",
    "DRAResourceClaimGranularStatusAuthorization": "DynamicResourceAllocation DRAResourceClaimDeviceStatus",
    "DRAResourcePoolStatus": "DynamicResourceAllocation",
    "DRASchedulerFilterTimeout": "DynamicResourceAllocation",
    "DRAWorkloadResourceClaims": "DynamicResourceAllocation GenericWorkload",
    "DeclarativeValidationBeta": "DeclarativeValidation",
    "DeclarativeValidationTakeover": "DeclarativeValidation",
    "DisableAllocatorDualWrite": "MultiCIDRServiceAllocator",
    "ExtendWebSocketsToKubelet": "NodeDeclaredFeatures",
    "GangScheduling": "GenericWorkload",
    "GracefulNodeShutdownBasedOnPodPriority": "GracefulNodeShutdown",
    "ImageVolumeWithDigest": "ImageVolume",
    "InPlacePodLevelResourcesVerticalScaling": "InPlacePodVerticalScaling NodeDeclaredFeatures"
    " PodLevelResources",
    "InPlacePodVerticalScalingExclusiveCPUs": "InPlacePodVerticalScaling",
    "InPlacePodVerticalScalingExclusiveMemory": "InPlacePodVerticalScaling",
    "InPlacePodVerticalScalingInitContainers": "InPlacePodVerticalScaling NodeDeclaredFeatures",
    "MatchLabelKeysInPodTopologySpreadSelectorMerge": "MatchLabelKeysInPodTopologySpread",
    "PodCertificateRequest": "AuthorizeNodeWithSelectors",
    "PodLevelResourceManagers": "PodLevelResources",
    "PodLifecycleSleepActionAllowZero": "PodLifecycleSleepAction",
    "ProcMountType": "UserNamespacesSupport",
    "ResourceHealthStatus": "DynamicResourceAllocation",
    "ResourceHealthStatusMessage": "ResourceHealthStatus",
    "RestartAllContainersOnContainerExits": "ContainerRestartRules NodeDeclaredFeatures",
    "ServiceAccountTokenNodeBinding": "ServiceAccountTokenNodeBindingValidation",
    "StaleControllerConsistencyDaemonSet": "AtomicFIFO",
    "StaleControllerConsistencyJob": "AtomicFIFO",
    "StaleControllerConsistencyReplicaSet": "AtomicFIFO",
    "StaleControllerConsistencyStatefulSet": "AtomicFIFO",
    "StorageVersionAPI": "APIServerIdentity",
    "StructuredAuthenticationConfigurationEgressSelector": "StructuredAuthenticationConfiguration",
    "StructuredAuthenticationConfigurationJWKSMetrics": "StructuredAuthenticationConfiguration",
    "TopologyAwareWorkloadScheduling": "GenericWorkload",
    "UnknownVersionInteroperabilityProxy": "APIServerIdentity",
    "UserNamespacesHostNetworkSupport": "UserNamespacesSupport NodeDeclaredFeatures",
    "WindowsGracefulNodeShutdown": "GracefulNodeShutdown",
    "WorkloadAwarePreemption": "GangScheduling",
    "WorkloadWithJob": "GenericWorkload",
}
