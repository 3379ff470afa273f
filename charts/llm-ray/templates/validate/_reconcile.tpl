{{/*
More of what KubeRay's reconciler refuses, and what specOverrides could bring back. A value that another refusal already names
is left to it: most count here only when specOverrides say them.
*/}}

{{/* Usage: (list $ CLUSTER SERVICE), SERVICE what specOverrides make of a RayService's spec, or an empty map */}}
{{- define "llm-ray.validate.finished" -}}
{{- $root := index . 0 -}}
{{- $cluster := index . 1 -}}
{{- if eq (include "llm-ray.kind" $root) "RayCluster" -}}
{{- include "llm-ray.validate.k8sToken" $cluster -}}
{{- end -}}
{{- include "llm-ray.validate.finishedPod" (list $root "headGroupSpec" $cluster.headGroupSpec) -}}
{{- range $cluster.workerGroupSpecs -}}
{{- include "llm-ray.validate.finishedPod" (list $root (printf "workerGroupSpecs[%s]" .groupName) .) -}}
{{- include "llm-ray.validate.finishedWorkers" (list $root $cluster .) -}}
{{- end -}}
{{- with index . 2 -}}
{{- if lt (int .rayClusterDeletionDelaySeconds) 0 -}}
{{- include "llm-ray.refuse" (list "specOverrides.rayService.rayClusterDeletionDelaySeconds" .rayClusterDeletionDelaySeconds "be at least 0" "set rollout.deletionDelaySeconds instead") -}}
{{- end -}}
{{- $type := (.upgradeStrategy | default dict).type | default "" -}}
{{- if and (eq $type "NewClusterWithIncrementalUpgrade") (ne (include "llm-ray.rolloutStrategy" $root) "incremental") -}}
{{- include "llm-ray.refuse" (list "specOverrides.rayService.upgradeStrategy.type" $type (printf "agree with rollout.strategy %s, by which options and deployer go" (include "llm-ray.rolloutStrategy" $root)) "take it out, and set rollout.strategy to incremental") -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Usage: CLUSTER */}}
{{- define "llm-ray.validate.k8sToken" -}}
{{- with .authOptions -}}
{{- if and .enableK8sTokenAuth (or .secretName (ne (.mode | default "") "token")) -}}
{{- include "llm-ray.refuse" (list "specOverrides.rayCluster.authOptions.enableK8sTokenAuth" true (printf "come with mode token (it is %s) and without secretName (it is %s)" (.mode | default "unset") (.secretName | default "unset")) "set auth.rayToken.enabled to true and its existingSecret to empty, or take it out") -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Head or worker group. Usage: (list $ PATH GROUP) */}}
{{- define "llm-ray.validate.finishedPod" -}}
{{- $root := index . 0 -}}
{{- $path := index . 1 -}}
{{- $said := $root.Values.specOverrides | toRawJson -}}
{{- with index . 2 -}}
{{- range $name, $value := .labels -}}
{{- if not (and (regexMatch "^([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$" $name) (regexMatch "^([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?$" (toString $value))) -}}
{{- include "llm-ray.refuse" (list (printf "rayLabels of %s" $path) (printf "%s: %v" $name $value) "have the form of Kubernetes' labels: at most 63 letters, digits, -, _ and ., none of - _ . at the ends" "rename it") -}}
{{- end -}}
{{- end -}}
{{- $params := .rayStartParams | default dict -}}
{{- range $name := list "redis-password" "redis-username" -}}
{{- if and (hasKey $params $name) (contains $name $said) -}}
{{- include "llm-ray.refuse" (list (printf "specOverrides: %s.rayStartParams.%s" $path $name) "…" "be left out: KubeRay refuses it beside gcsFaultToleranceOptions" "set faultTolerance.gcs.redis instead") -}}
{{- end -}}
{{- end -}}
{{- $pod := .template.spec -}}
{{- range concat ($pod.containers | default list) ($pod.initContainers | default list) -}}
{{- if and (hasSuffix ":latest" (toString .image)) (contains (toString .image) $said) -}}
{{- include "llm-ray.refuse" (list (printf "specOverrides: %s.template.spec, image of %s" $path .name) .image "name one version" "end it with another tag, or with a digest") -}}
{{- end -}}
{{- end -}}
{{- if and $pod.hostNetwork (contains "\"hostNetwork\":true" $said) (has $pod.dnsPolicy (list "ClusterFirst" "Default")) -}}
{{- include "llm-ray.refuse" (list (printf "specOverrides: %s.template.spec.dnsPolicy" $path) $pod.dnsPolicy "be ClusterFirstWithHostNet with hostNetwork, or pods never find the head's Service" "set hostNetwork of head or workers instead") -}}
{{- end -}}
{{- if and (eq $root.Values.gang.provider "podgroup") (ne (toString $pod.schedulerName) "volcano") -}}
{{- include "llm-ray.refuse" (list (printf "specOverrides: %s.template.spec.schedulerName" $path) $pod.schedulerName "be volcano with gang.provider podgroup: another scheduler does not know the group" "take it out") -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Usage: (list $ CLUSTER WORKERGROUP) */}}
{{- define "llm-ray.validate.finishedWorkers" -}}
{{- $root := index . 0 -}}
{{- $cluster := index . 1 -}}
{{- $version := ($cluster.autoscalerOptions | default dict).version | default "" -}}
{{- with index . 2 -}}
{{- $key := printf "specOverrides: workerGroupSpecs[%s]" .groupName -}}
{{- if lt (int .minReplicas) 0 -}}
{{- include "llm-ray.refuse" (list (printf "%s.minReplicas" $key) .minReplicas "be at least 0" "take it out, and set minReplicas in workers") -}}
{{- end -}}
{{- $v2 := and $cluster.enableInTreeAutoscaling (eq $version "v2") -}}
{{- $ours := or (eq $root.Values.autoscaling.mode "serve") (contains "idleTimeoutSeconds" ($root.Values.specOverrides | toRawJson)) -}}
{{- if and (not (kindIs "invalid" .idleTimeoutSeconds)) $ours (not $v2) -}}
{{- include "llm-ray.refuse" (list (printf "%s.idleTimeoutSeconds" $key) .idleTimeoutSeconds (printf "be left out unless version 2 of Ray's autoscaler runs (version is %s)" ($version | default "unset")) "take it out, or set autoscaling.mode to serve and leave autoscalerOptions.version alone") -}}
{{- end -}}
{{- $cpus := index (.rayStartParams | default dict) "num-cpus" -}}
{{- if and (eq (toString $cpus) "0") (contains "num-cpus" ($root.Values.specOverrides | toRawJson)) -}}
{{- include "llm-ray.refuse" (list (printf "%s.rayStartParams.num-cpus" $key) $cpus "be at least 1, or no replica and no rank is ever placed on the group" "take it out: it follows from the CPU limit") -}}
{{- end -}}
{{- end -}}
{{- end -}}
