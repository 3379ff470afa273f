{{/*
What KubeRay's webhook does not check and its reconciler refuses: the object is accepted, an event appears, and no pod is ever
made. Checked on the finished spec, so that specOverrides are seen too. Usage: $
*/}}
{{- define "llm-ray.validate.kuberay" -}}
{{- $cluster := include "llm-ray.clusterSpec" . | fromYaml -}}
{{- $service := dict -}}
{{- if eq (include "llm-ray.kind" .) "RayService" -}}
{{- $service = include "llm-ray.override" (list (dict "rayClusterConfig" $cluster) .Values.specOverrides.rayService) | fromYaml -}}
{{- $cluster = $service.rayClusterConfig -}}
{{- include "llm-ray.validate.serviceCluster" (list . $cluster) -}}
{{- end -}}
{{- include "llm-ray.validate.gates" (list . $cluster) -}}
{{- include "llm-ray.validate.rayToken" (list . $cluster) -}}
{{- include "llm-ray.validate.rayGroup" (list . $cluster "headGroupSpec" $cluster.headGroupSpec) -}}
{{- range $cluster.workerGroupSpecs -}}
{{- include "llm-ray.validate.rayGroup" (list $ $cluster (printf "workerGroupSpecs[%s]" .groupName) .) -}}
{{- include "llm-ray.validate.rayWorkers" (list $ $cluster .) -}}
{{- end -}}
{{- include "llm-ray.validate.finished" (list . $cluster $service) -}}
{{- end -}}

{{/* Alpha fields, refused while their gate is off. Usage: (list $ CLUSTER) */}}
{{- define "llm-ray.validate.gates" -}}
{{- $kuberay := (index . 0).Values.kuberay -}}
{{- $cluster := index . 1 -}}
{{- $rocksdb := eq (($cluster.gcsFaultToleranceOptions | default dict).backend | default "") "rocksdb" -}}
{{- $used := dict "networkPolicy" $cluster.networkPolicy "tlsOptions" $cluster.tlsOptions "historyServerOptions" $cluster.historyServerOptions
  "gcsFaultToleranceOptions.backend rocksdb" ($rocksdb | ternary "rocksdb" "") -}}
{{- $gates := dict "networkPolicy" "RayClusterNetworkPolicy" "tlsOptions" "RayClusterMTLS" "historyServerOptions" "RayClusterHistoryServer"
  "gcsFaultToleranceOptions.backend rocksdb" "GCSFaultToleranceEmbeddedStorage" -}}
{{- range $field, $value := $used -}}
{{- $gate := index $gates $field -}}
{{- if and $value (or (ne $kuberay.version "1.7") (not (has $gate $kuberay.featureGates))) -}}
{{- include "llm-ray.refuse" (list "kuberay.featureGates" $kuberay.featureGates (printf "have %s, and kuberay.version (%s) be 1.7, for the alpha field %s" $gate $kuberay.version $field) "switch the gate on in the operator and add it here, or do without the field") -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Usage: (list $ CLUSTER) */}}
{{- define "llm-ray.validate.rayToken" -}}
{{- $options := (index . 1).authOptions | default dict -}}
{{- $version := (index . 1).rayVersion | toString -}}
{{- if eq ($options.mode | default "") "token" -}}
{{- if not (semverCompare ">=2.52.0-0" $version) -}}
{{- include "llm-ray.refuse" (list "auth.rayToken.enabled" true (printf "be false with rayVersion %s: tokens need Ray 2.52" $version) "take rayVersion out of specOverrides.rayCluster") -}}
{{- end -}}
{{- end -}}
{{- if and $options.enableK8sTokenAuth (or (eq (include "llm-ray.kind" (index . 0)) "RayService") (eq (index . 0).Values.kuberay.version "1.5") (not (semverCompare ">=2.55.0-0" $version))) -}}
{{- include "llm-ray.refuse" (list "specOverrides.rayCluster.authOptions.enableK8sTokenAuth" true "be false with kind RayService, KubeRay 1.5 or Ray below 2.55" "take it out") -}}
{{- end -}}
{{- end -}}

{{/* Fields that a RayCluster made by a RayService must not have. Usage: (list $ CLUSTER) */}}
{{- define "llm-ray.validate.serviceCluster" -}}
{{- with index . 1 -}}
{{- if .upgradeStrategy -}}
{{- include "llm-ray.refuse" (list "specOverrides.rayCluster.upgradeStrategy" .upgradeStrategy "be left out with kind RayService, whose own strategy decides" "set rollout.strategy") -}}
{{- end -}}
{{- with ((.headGroupSpec.headService | default dict).metadata | default dict).name -}}
{{- include "llm-ray.refuse" (list "specOverrides.headGroup.headService.metadata.name" . "be left out with kind RayService: the next cluster could not have the name" "take it out") -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* A group's fields that exclude each other. Usage: (list $ CLUSTER PATH GROUP) */}}
{{- define "llm-ray.validate.rayGroup" -}}
{{- $path := index . 2 -}}
{{- $overrides := (index . 0).Values.specOverrides | toRawJson -}}
{{- $autoscaled := (index . 1).enableInTreeAutoscaling -}}
{{- with index . 3 -}}
{{- $params := .rayStartParams | default dict -}}
{{- range $name := empty .resources | ternary list (list "num-cpus" "num-gpus" "memory" "resources") -}}
{{- if hasKey $params $name -}}
{{- include "llm-ray.refuse" (list (printf "specOverrides: %s.resources" $path) (printf "beside rayStartParams.%s" $name) "be the only word on Ray's resources" "keep one of them") -}}
{{- end -}}
{{- end -}}
{{- if and (hasKey $params "labels") (regexMatch "\"rayStartParams\":{[^}]*\"labels\":" $overrides) -}}
{{- include "llm-ray.refuse" (list (printf "specOverrides: %s.rayStartParams.labels" $path) $params.labels "be left out: KubeRay writes it from labels" "set rayLabels of the head or the group") -}}
{{- end -}}
{{- range .template.spec.containers -}}
{{- range .env -}}
{{- if and (has .name (list "RAY_REDIS_ADDRESS" "REDIS_PASSWORD" "REDIS_USERNAME" "RAY_enable_autoscaler_v2")) (contains .name $overrides) -}}
{{- include "llm-ray.refuse" (list (printf "specOverrides: %s.template.spec.containers[].env" $path) .name "hold no variable that KubeRay writes itself" "set faultTolerance.gcs or autoscaling.mode instead") -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $restart := .template.spec.restartPolicy | default "" -}}
{{- if and $autoscaled (ne $restart "Never") -}}
{{- include "llm-ray.refuse" (list (printf "specOverrides: %s.template.spec.restartPolicy" $path) $restart "be Never while Ray's autoscaler runs: it could not take idle pods away" "take it out") -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Usage: (list $ CLUSTER WORKERGROUP) */}}
{{- define "llm-ray.validate.rayWorkers" -}}
{{- $version := (index . 0).Values.kuberay.version -}}
{{- $overrides := (index . 0).Values.specOverrides.workerGroups -}}
{{- $fixed := eq (index . 0).Values.autoscaling.mode "fixed" -}}
{{- $cluster := index . 1 -}}
{{- with index . 2 -}}
{{- if and (index $overrides .groupName) (gt (int .minReplicas) (int .maxReplicas)) -}}
{{- include "llm-ray.refuse" (list (printf "specOverrides.workerGroups.%s.minReplicas" .groupName) .minReplicas (printf "be at most maxReplicas (%d)" (int .maxReplicas)) "set minReplicas and maxReplicas in workers") -}}
{{- end -}}
{{- if and .priority (or (not $cluster.enableInTreeAutoscaling) (ne $version "1.7")) -}}
{{- include "llm-ray.refuse" (list (printf "specOverrides.workerGroups.%s.priority" .groupName) .priority "be left out unless KubeRay is 1.7 and Ray's autoscaler runs" "take it out") -}}
{{- end -}}
{{- if and $cluster.enableInTreeAutoscaling .suspend (or $fixed (index $overrides .groupName | default dict).suspend) -}}
{{- include "llm-ray.refuse" (list (printf "specOverrides.workerGroups.%s.suspend" .groupName) true "be false while Ray's autoscaler runs" "take it out") -}}
{{- end -}}
{{- end -}}
{{- end -}}
