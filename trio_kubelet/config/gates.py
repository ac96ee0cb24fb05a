"""The feature gates of kubelet v1.36, and what the user's settings come to, by the kubelet's rules about
stages, locks and which gate needs which.

Alpha and beta gates are those `--feature-gates` offers; the finished and the deprecated ones are still
accepted in old configurations.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Final

from msgspec import Struct

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


class GateError(Exception):
    """Settings the kubelet refuses: an unknown gate, a locked one set otherwise, an unmet dependency."""


class Gate(Struct, frozen=True):
    """One gate as v1.36 has it; `stage` is ALPHA, BETA, GA or DEPRECATED."""

    name: str
    stage: str
    default: bool
    locked: bool


class FeatureGates(Struct, frozen=True):
    """The gates in force; `warnings` names finished and deprecated ones that were set."""

    settings: Mapping[str, bool]
    warnings: tuple[str, ...] = ()

    def enabled(self, name: str) -> bool:
        """Whether the feature `name` is on; KeyError for a name that is no gate."""
        setting = self.settings.get(name)
        return known_gates()[name].default if setting is None else setting


@functools.cache
def known_gates() -> Mapping[str, Gate]:
    """All gates by name, without the collective AllAlpha and AllBeta."""
    return {
        name: Gate(name, stage, default, locked)
        for (stage, default, locked), names in GATES.items()
        for name in names.split()
    }


COLLECTIVE = {"AllAlpha": "ALPHA", "AllBeta": "BETA"}


def uses_runtime_events(wanted: Mapping[str, bool]) -> bool:
    """Whether the runtime's events are used, by the settings of gates: unless `EventedPLEG` is switched off.

    The kubelet ships its evented PLEG switched off because it lost events; this agent's does not.
    """
    return wanted.get("EventedPLEG", True)


def uses_list_streams(wanted: Mapping[str, bool]) -> bool:
    """Whether the runtime's lists are asked for as streams, which no message's limit cuts off: unless
    `CRIListStreaming` is switched off. A runtime that does not have them says so.
    """
    return wanted.get("CRIListStreaming", True)


def resolve_gates(wanted: Mapping[str, bool]) -> FeatureGates:
    """The gates under the settings `wanted`; GateError names everything that cannot be."""
    known = known_gates()
    errors, warnings = [], []
    settings: dict[str, bool] = {}
    for collective, stage in COLLECTIVE.items():
        if collective in wanted:
            settings |= {gate.name: wanted[collective] for gate in known.values() if gate.stage == stage}
    for name, value in wanted.items():
        if name in COLLECTIVE:
            continue
        gate = known.get(name)
        if gate is None:
            errors.append(f"unrecognized feature gate: {name}{_nearest(name)}")
            continue
        shown = str(value).lower()
        if gate.locked and value != gate.default:
            errors.append(
                f"cannot set feature gate {name} to {shown}, feature is locked to {str(gate.default).lower()}"
            )
            continue
        settings[name] = value
        if gate.stage in ("GA", "DEPRECATED"):
            warnings.append(f"{name}={shown} ({gate.stage})")
    gates = FeatureGates(settings, tuple(warnings))
    if not errors:
        errors = _unmet(gates)
    if errors:
        raise GateError("; ".join(errors))
    return gates


def _unmet(gates: FeatureGates) -> list[str]:
    errors = []
    for name, needs in NEEDS.items():
        missing = [need for need in needs.split() if not gates.enabled(need)]
        if missing and gates.enabled(name):
            errors.append(
                f"{name} is enabled, but depends on features that are disabled: {', '.join(missing)}"
            )
    return errors


def _nearest(name: str) -> str:
    import difflib  # only for a mistake

    near = difflib.get_close_matches(name, known_gates(), n=1)
    return f" (did you mean {near[0]}?)" if near else ""
